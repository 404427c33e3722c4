// Package arch holds the architecture as tests: who may import whom, each ban with its reason, and the maxima that start a conversation.
//
// It has no code of its own. The tests read the source of the whole workspace; they need nothing but the go command.
package arch
