// Package conf fills one struct from a YAML file, the environment and flags, and refuses what it does not know.
//
// The struct that is passed in holds the defaults. A key is the field's json name in the file (natsURL), the same in kebab case as a flag
// (--nats-url) and in upper case in the environment (PODPLANE_SYNCD_NATS_URL for one service, PODPLANE_NATS_URL for all). What is said later
// wins: defaults, file, PODPLANE_<KEY>, PODPLANE_<SERVICE>_<KEY>, flags. Embedded (exported) structs lend their keys to the outer one; named structs are nested in
// the file and prefix flags and variables.
//
// Field tags: json (the key; "-" is no setting), usage (the flag's help), secret:"true" (masked when printed).
// Structs that implement Validator are asked, and may say which fields are wrong.
package conf
