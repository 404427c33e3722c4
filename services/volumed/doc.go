// Package placeholder keeps the module buildable until its first package lands.
package placeholder
