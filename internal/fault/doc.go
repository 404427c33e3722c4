// Package fault gives every error of Podplane a kind, so that callers decide by kind and never by the words of a message.
//
// An error gets its kind where it is first known what it means (fault.New) and keeps it through any number of fmt.Errorf("…: %w").
// KindOf also understands the errors of contexts, of gRPC and of the Kubernetes libraries, so that nothing has to be converted by hand.
//
// An error crosses a wire in two translations, one on each side: ToGRPC in the server and FromGRPC in the client (internal/rpc does both
// in its interceptors); the kind, the reason, the field errors, the object and the time to wait before a retry survive. ToStatus makes
// the metav1.Status that a REST client sees.
//
// Field errors never repeat a value that the user sent, except the words of an enumeration and duplicate names: messages end up in logs
// and spans, and a value may be a secret.
package fault
