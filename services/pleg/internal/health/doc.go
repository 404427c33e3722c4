// Package health asks the runtime how it is and writes the node's conditions RuntimeReady and NetworkReady.
//
// # Guarantees
//
//   - Nothing is written before the first real observation. A change is written at once, a heartbeat each 10 s.
//   - RuntimeReady is False when the runtime says so, when it can't be reached (one failed check after the event stream
//     broke, else two in a row), or when it has not answered for Options.Timeout. It is True with the first good answer.
//     While it can't be asked, NetworkReady is Unknown.
//   - One check at a time, each bounded. Nothing is concluded about pods.
package health
