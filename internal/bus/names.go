package bus

import (
	"fmt"
	"strings"

	"github.com/podplane/podplane/internal/fault"
)

// Services, by the names under which they connect, register and get permissions.
const (
	ServiceSyncd   = "syncd"
	ServicePleg    = "pleg"
	ServiceProber  = "prober"
	ServiceVolumed = "volumed"
	ServiceEvictd  = "evictd"
	ServiceGateway = "gateway"
	// ServiceCLI is the command line, which reads and never writes.
	ServiceCLI = "cli"
)

// AllServices lists the services that write to the bus.
func AllServices() []string {
	return []string{ServiceSyncd, ServicePleg, ServiceProber, ServiceVolumed, ServiceEvictd, ServiceGateway}
}

// Buckets and streams.
const (
	BucketPods       = "pods"
	BucketObjects    = "objects"
	BucketStatus     = "status"
	BucketVolumes    = "volumes"
	BucketProbes     = "probes"
	BucketConditions = "conditions"
	BucketEvictions  = "evictions"
	BucketNodes      = "nodes"
	BucketServices   = "services"
	BucketLeases     = "leases"

	StreamLifecycle = "LIFECYCLE"
	StreamEvents    = "EVENTS"
	StreamDecisions = "DECISIONS"

	lifecyclePrefix = "pleg.v1."
	eventsPrefix    = "events.v1."
	decisionsPrefix = "decisions.v1."
	bucketPrefix    = "$KV."
	bucketStream    = "KV_"
	fencePrefix     = "$FENCE."
)

// Node conditions: the last token of the keys in the bucket of conditions.
const (
	ConditionRuntimeReady   = "RuntimeReady"
	ConditionNetworkReady   = "NetworkReady"
	ConditionMemoryPressure = "MemoryPressure"
	ConditionDiskPressure   = "DiskPressure"
	ConditionPIDPressure    = "PIDPressure"
)

// Schema is the version of the records and declarations of this Podplane, MinReader the oldest that understands what it writes. Whoever adds a
// field that others may ignore raises Schema; whoever changes what a record means, so that an older reader would do harm, raises both.
const (
	Schema    = 1
	MinReader = 1
)

// Headers of what travels on the bus, beside traceparent and tracestate.
const (
	// HeaderWriter names who wrote it: <service>/<instance>.
	HeaderWriter = "Podplane-Writer"
	// HeaderSchema is the version of the encoding.
	HeaderSchema = "Podplane-Schema"
	// HeaderMinReader is the oldest version that understands it; not there: every one does.
	HeaderMinReader = "Podplane-Min-Reader"
	// HeaderTraceParent and HeaderTraceState are the W3C trace context, in this spelling.
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"

	headerMsgID        = "Nats-Msg-Id"
	headerExpected     = "Nats-Expected-Last-Subject-Sequence"
	headerExpectedOf   = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerTTL          = "Nats-TTL"
	headerRollup       = "Nats-Rollup"
	headerOperation    = "KV-Operation"
	headerMarkerReason = "Nats-Marker-Reason"
	operationDelete    = "DEL"
	operationPurge     = "PURGE"
	rollupSubject      = "sub"
)

// NodeUID stands for the node itself where a key or subject has a pod's UID.
const NodeUID = "node"

// PodKey is the key of a pod in pods, status, volumes and evictions.
func PodKey(node, uid string) string { return Key(node, uid) }

// ObjectKey is the key of a ConfigMap or Secret.
func ObjectKey(namespace, kind, name string) string { return Key(namespace, kind, name) }

// ProbeKey is the key of a probe's result; kind is liveness, readiness or startup.
func ProbeKey(node, uid, container, kind string) string { return Key(node, uid, container, kind) }

// ConditionKey is the key of a node condition.
func ConditionKey(node, conditionType string) string { return Key(node, conditionType) }

// ServiceKey is the key of a registration.
func ServiceKey(service, node, instance string) string { return Key(service, node, instance) }

// LeaseKey is the key of a lease; what is a shard's number, or the name of a replica's own record.
func LeaseKey(service, node, what string) string { return Key(service, node, what) }

// LeasePattern matches the leases of a service on a node.
func LeasePattern(service, node string) string { return Key(service, node) + ".*" }

// AllKeys matches every key of a bucket, of whichever node.
const AllKeys = ">"

// NodeKey is the key of what a node says about itself.
func NodeKey(node string) string { return Token(node) }

// NodePattern matches every key of a node.
func NodePattern(node string) string { return Token(node) + ".>" }

// ServicePattern matches every registration of a service on any node.
func ServicePattern(service string) string { return Token(service) + ".>" }

// LifecycleSubject is the subject of a lifecycle event.
func LifecycleSubject(node, uid, eventType string) string {
	return lifecyclePrefix + Key(node, uid, eventType)
}

// LifecyclePattern matches the lifecycle events of a node.
func LifecyclePattern(node string) string { return lifecyclePrefix + Token(node) + ".>" }

// LifecycleEverywhere matches the lifecycle events of every node, or of one pod on whichever node it is; uid may be empty.
func LifecycleEverywhere(uid string) string {
	if uid == "" {
		return lifecyclePrefix + ">"
	}
	return lifecyclePrefix + "*." + Token(uid) + ".>"
}

// LifecyclePodPattern matches the lifecycle events of one pod.
func LifecyclePodPattern(node, uid string) string { return lifecyclePrefix + Key(node, uid) + ".>" }

// EventSubject is the subject of a Kubernetes Event about a pod, or about the node itself (NodeUID).
func EventSubject(node, uid, reason string) string { return eventsPrefix + Key(node, uid, reason) }

// EventPattern matches the Events of a node.
func EventPattern(node string) string { return eventsPrefix + Token(node) + ".>" }

// EventsEverywhere matches the Events of every node, or about one pod on whichever node it is; uid may be empty.
func EventsEverywhere(uid string) string {
	if uid == "" {
		return eventsPrefix + ">"
	}
	return eventsPrefix + "*." + Token(uid) + ".>"
}

// DecisionsSubject is the subject of what syncd decided for a pod.
func DecisionsSubject(node, uid, namespace, name string) string {
	return decisionsPrefix + Key(node, uid, namespace, name)
}

// DecisionsPodPattern matches the decisions for one pod, on whichever node it is.
func DecisionsPodPattern(uid string) string { return decisionsPrefix + "*." + Token(uid) + ".>" }

// DecisionsNamePattern matches the decisions for all pods that had a name, on whichever node.
func DecisionsNamePattern(namespace, name string) string {
	return decisionsPrefix + "*.*." + Key(namespace, name)
}

// Key joins parts to a key, each escaped by Token.
func Key(parts ...string) string {
	for i, p := range parts {
		if t := Token(p); t != p {
			escaped := append([]string(nil), parts...)
			for j := i; j < len(parts); j++ {
				escaped[j] = Token(parts[j])
			}
			return strings.Join(escaped, ".")
		}
	}
	return strings.Join(parts, ".")
}

// SplitKey is the inverse of Key. It also splits a subject.
func SplitKey(key string) ([]string, error) {
	parts := strings.Split(key, ".")
	for i, p := range parts {
		s, err := Untoken(p)
		if err != nil {
			return nil, fmt.Errorf("split key %q: %w", key, err)
		}
		parts[i] = s
	}
	return parts, nil
}

const hexDigits = "0123456789ABCDEF"

// Token escapes s so that it is one token of a key: each byte but letters,
// digits, '-' and '_' becomes '=' and two hex digits (a node's "a.example" is
// "a=2Eexample"). The empty string becomes "=".
func Token(s string) string {
	if s == "" {
		return "="
	}
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '=', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(b)
}

// Untoken is the inverse of Token.
func Untoken(t string) (string, error) {
	if t == "=" {
		return "", nil
	}
	if t == "" {
		return "", fault.New(fault.Invalid, "an empty token")
	}
	if !strings.Contains(t, "=") {
		return t, nil
	}
	b := make([]byte, 0, len(t))
	for i := 0; i < len(t); i++ {
		if t[i] != '=' {
			b = append(b, t[i])
			continue
		}
		if i+2 >= len(t) {
			return "", fault.New(fault.Invalid, "token %q ends within an escape", t)
		}
		hi, lo := strings.IndexByte(hexDigits, t[i+1]), strings.IndexByte(hexDigits, t[i+2])
		if hi < 0 || lo < 0 {
			return "", fault.New(fault.Invalid, "token %q has an escape that is not two upper-case hex digits", t)
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}
