package telemetry

import "go.opentelemetry.io/otel/attribute"

// Attribute keys of spans, and names of log attributes. Those that OpenTelemetry's conventions know have their names from there.
const (
	PodUID        = attribute.Key("k8s.pod.uid")
	PodName       = attribute.Key("k8s.pod.name")
	NamespaceName = attribute.Key("k8s.namespace.name")
	ContainerName = attribute.Key("k8s.container.name")
	NodeName      = attribute.Key("k8s.node.name")
	VolumeName    = attribute.Key("k8s.volume.name")
	VolumeType    = attribute.Key("k8s.volume.type")

	ContainerID        = attribute.Key("container.id")
	ContainerImageName = attribute.Key("container.image.name")

	ServiceName       = attribute.Key("service.name")
	ServiceVersion    = attribute.Key("service.version")
	ServiceInstanceID = attribute.Key("service.instance.id")

	// SandboxID is the pod sandbox as the runtime calls it.
	SandboxID = attribute.Key("podplane.sandbox.id")
	// Phase is the phase of a pod's worker.
	Phase = attribute.Key("podplane.worker.phase")
	// Action is one step of a worker's plan.
	Action = attribute.Key("podplane.worker.action")
	// ProbeKind is startup, liveness or readiness.
	ProbeKind = attribute.Key("podplane.probe.kind")
	// ProbeResult is the verdict.
	ProbeResult = attribute.Key("podplane.probe.result")
	// LifecycleType is the type of a lifecycle event.
	LifecycleType = attribute.Key("podplane.lifecycle.type")
	// Signal is an eviction signal.
	Signal = attribute.Key("podplane.eviction.signal")
	// Revision is the bus revision of a record.
	Revision = attribute.Key("podplane.bus.revision")
	// KeptFor says why a span was sent although its trace was not sampled: error.
	KeptFor = attribute.Key("podplane.trace.kept_for")
	// ErrorKind is the kind of internal/fault of what went wrong.
	ErrorKind = attribute.Key("podplane.error.kind")
)
