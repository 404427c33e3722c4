package admission

// Annotations that the API adds to the pods that it answers. They are not stored and are ignored in what clients send.
const (
	// AnnotationWaiting says what the pod waits for, as JSON: [{"step","resource","message","since"}].
	AnnotationWaiting = "podplane.io/waiting"
	// AnnotationPhase is the phase of the pod's worker: Syncing, Terminating or Terminated.
	AnnotationPhase = "podplane.io/worker-phase"
	// AnnotationTrace is the trace context of the request that the pod came from.
	AnnotationTrace = "podplane.io/traceparent"
)

// AnswerAnnotations are the annotations above.
func AnswerAnnotations() []string {
	return []string{AnnotationWaiting, AnnotationPhase, AnnotationTrace}
}
