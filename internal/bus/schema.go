package bus

import (
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const (
	kib = 1 << 10
	mib = 1 << 20

	// maxPodBytes fits a manifest of 3 MiB with the defaults filled in.
	maxPodBytes = 4 * mib
	// maxObjectBytes fits Kubernetes' 1 MiB of data in base64 with its metadata.
	maxObjectBytes = 3 * mib
)

// Registrations are renewed each RegistrationHeartbeat and vanish after RegistrationTTL.
const (
	RegistrationHeartbeat = 2 * time.Second
	RegistrationTTL       = 8 * time.Second
)

// The buckets. Each is declared here only: permissions are generated from it.
var (
	// Pods are the desired pods.
	Pods = BucketSpec[*podplanev1.PodRecord]{
		Name: BucketPods, Owner: ServiceSyncd, Writers: only(ServiceSyncd, "{node}.>"),
		Readers:  []string{ServiceSyncd, ServicePleg, ServiceProber, ServiceVolumed, ServiceEvictd, ServiceCLI},
		UIDToken: 1, Durable: true, MaxBytes: 512 * mib, MaxValueBytes: maxPodBytes,
		New: func() *podplanev1.PodRecord { return new(podplanev1.PodRecord) },
	}
	// Objects are ConfigMaps and Secrets, which only syncd and volumed may read.
	Objects = BucketSpec[*podplanev1.ObjectRecord]{
		Name: BucketObjects, Owner: ServiceSyncd, Writers: only(ServiceSyncd, ">"),
		Readers:  []string{ServiceSyncd, ServiceVolumed},
		UIDToken: -1, Durable: true, MaxBytes: 512 * mib, MaxValueBytes: maxObjectBytes,
		New: func() *podplanev1.ObjectRecord { return new(podplanev1.ObjectRecord) },
	}
	// Status is what became of each pod.
	Status = BucketSpec[*podplanev1.StatusRecord]{
		Name: BucketStatus, Owner: ServiceSyncd, Writers: only(ServiceSyncd, "{node}.>"),
		Readers:  []string{ServiceSyncd, ServicePleg, ServiceProber, ServiceVolumed, ServiceEvictd, ServiceCLI},
		UIDToken: 1, Fenced: true, MaxBytes: 128 * mib, MaxValueBytes: 1 * mib,
		New: func() *podplanev1.StatusRecord { return new(podplanev1.StatusRecord) },
	}
	// Volumes are the volumes set up for each pod.
	Volumes = BucketSpec[*podplanev1.VolumesRecord]{
		Name: BucketVolumes, Owner: ServiceVolumed, Writers: only(ServiceVolumed, "{node}.>"),
		Readers:  []string{ServiceVolumed, ServiceSyncd, ServiceEvictd, ServiceCLI},
		UIDToken: 1, Fenced: true, MaxBytes: 64 * mib, MaxValueBytes: 1 * mib,
		New: func() *podplanev1.VolumesRecord { return new(podplanev1.VolumesRecord) },
	}
	// Probes are the verdicts of probes.
	Probes = BucketSpec[*podplanev1.ProbeRecord]{
		Name: BucketProbes, Owner: ServiceProber, Writers: only(ServiceProber, "{node}.>"),
		Readers:  []string{ServiceProber, ServiceSyncd, ServiceCLI},
		UIDToken: 1, Fenced: true, MaxBytes: 32 * mib, MaxValueBytes: 64 * kib,
		New: func() *podplanev1.ProbeRecord { return new(podplanev1.ProbeRecord) },
	}
	// Conditions are the node's conditions.
	Conditions = BucketSpec[*podplanev1.ConditionRecord]{
		Name: BucketConditions, // both writers create it: neither waits for the other
		Writers: map[string][]string{
			ServiceEvictd: {"{node}." + ConditionMemoryPressure, "{node}." + ConditionDiskPressure, "{node}." + ConditionPIDPressure},
			ServicePleg:   {"{node}." + ConditionRuntimeReady, "{node}." + ConditionNetworkReady},
		},
		Readers:  []string{ServiceEvictd, ServicePleg, ServiceSyncd, ServiceProber, ServiceVolumed, ServiceCLI},
		UIDToken: -1, Fenced: true, MaxBytes: 8 * mib, MaxValueBytes: 64 * kib,
		New: func() *podplanev1.ConditionRecord { return new(podplanev1.ConditionRecord) },
	}
	// Evictions are the orders to evict.
	Evictions = BucketSpec[*podplanev1.EvictionRecord]{
		Name: BucketEvictions, Owner: ServiceEvictd, Writers: only(ServiceEvictd, "{node}.>"),
		Readers:  []string{ServiceEvictd, ServiceSyncd, ServiceCLI},
		UIDToken: 1, Durable: true, Fenced: true, MaxBytes: 16 * mib, MaxValueBytes: 64 * kib,
		New: func() *podplanev1.EvictionRecord { return new(podplanev1.EvictionRecord) },
	}
	// Nodes are what each node says about itself.
	Nodes = BucketSpec[*podplanev1.NodeRecord]{
		Name: BucketNodes, Owner: ServiceSyncd, Writers: only(ServiceSyncd, "{node}"), Readers: []string{ServiceSyncd, ServiceCLI},
		UIDToken: -1, MaxBytes: 16 * mib, MaxValueBytes: 256 * kib,
		New: func() *podplanev1.NodeRecord { return new(podplanev1.NodeRecord) },
	}
	// Services are the registrations of running replicas; every service writes its own.
	Services = BucketSpec[*podplanev1.ServiceRecord]{
		Name: BucketServices, Writers: each("{service}.{node}.*"),
		Readers:  append(AllServices(), ServiceCLI),
		UIDToken: -1, Memory: true, TTL: RegistrationTTL, MaxBytes: 8 * mib, MaxValueBytes: 64 * kib,
		New: func() *podplanev1.ServiceRecord { return new(podplanev1.ServiceRecord) },
	}
	// Leases say which replica of a service works on which shard (package shard). They never expire by the server's
	// clock: a replica's record goes when another one has seen it unrenewed for its TTL, compared and swapped.
	Leases = BucketSpec[*podplanev1.LeaseRecord]{
		Name: BucketLeases, Writers: divided("{service}.{node}.*"),
		Readers:  append(AllServices(), ServiceCLI),
		UIDToken: -1, Durable: true, MaxBytes: 8 * mib, MaxValueBytes: 4 * kib,
		New: func() *podplanev1.LeaseRecord { return new(podplanev1.LeaseRecord) },
	}
)

// The streams.
var (
	// Lifecycle is the journal of what happened to containers and sandboxes.
	Lifecycle = StreamSpec{
		Name: StreamLifecycle, Owners: []string{ServicePleg}, Subjects: []string{lifecyclePrefix + ">"},
		Readers: append(AllServices(), ServiceCLI),
		MaxAge:  7 * 24 * time.Hour, MaxBytes: 256 * mib, MaxMessageBytes: 256 * kib, Duplicates: 10 * time.Minute,
	}
	// Events are Kubernetes Events, by the service that saw them.
	Events = StreamSpec{
		Name: StreamEvents, Owners: AllServices(), Subjects: []string{eventsPrefix + ">"},
		Readers: append(AllServices(), ServiceCLI),
		MaxAge:  time.Hour, MaxBytes: 64 * mib, MaxMessageBytes: 64 * kib, Duplicates: 2 * time.Minute,
	}
	// Decisions is the journal of what syncd decided for each pod, and why.
	Decisions = StreamSpec{
		Name: StreamDecisions, Owners: []string{ServiceSyncd}, Subjects: []string{decisionsPrefix + ">"},
		Readers: []string{ServiceSyncd, ServiceCLI},
		MaxAge:  24 * time.Hour, MaxBytes: 64 * mib, MaxMessageBytes: 64 * kib, Duplicates: 2 * time.Minute,
	}
)

func only(service, pattern string) map[string][]string {
	return map[string][]string{service: {pattern}}
}

// divided are the services whose replicas divide their work; any number of gateways do the same.
func divided(pattern string) map[string][]string {
	m := each(pattern)
	delete(m, ServiceGateway)
	return m
}

func each(pattern string) map[string][]string {
	m := make(map[string][]string)
	for _, s := range AllServices() {
		m[s] = []string{pattern}
	}
	return m
}
