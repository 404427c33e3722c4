// Package access decides who a caller is and what a caller may do.
//
// Who: a bearer token of the file of tokens, or a client certificate of the CA for people (CN is the user, O are the groups); a request that
// shows a token is judged by the token alone. What: roles bound to users and groups in namespaces, by one YAML file. Nothing is allowed that
// no binding allows, and bindings only add. The files are read again when they change; one that can't be read leaves the former in use.
//
// Deciding costs a hash and a few comparisons of strings and has no state but the files: any number of replicas agree within
// reload.Every of a change.
package access
