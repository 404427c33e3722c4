// Package pki makes the certificates of a Podplane and uses them.
//
// A directory (mode 0700, keys 0600) holds two authorities that trust nothing of each other: one for Podplane's own processes, which talk TLS with both sides
// shown (services among themselves and with the bus) and for the front door's certificate; one for people's client certificates. So a
// user's certificate opens no connection to a service, and a service's is nobody at the front door.
//
// A process's certificate names it as <name>.podplane.internal, wherever it runs; addresses are not in it, because replicas take any. Who
// connects checks that name, who is connected to checks that it is one of Podplane's. Files are read again when they change, so that renewed
// certificates, and authorities added to the bundle ca.crt, are in force without a restart.
package pki
