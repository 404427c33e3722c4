package cri

import "time"

// PodStats is what a sandbox and its containers use. Parts that the runtime does not report are nil.
type PodStats struct {
	SandboxID   string
	UID         string
	Namespace   string
	Name        string
	Attempt     uint32
	Labels      map[string]string
	Annotations map[string]string

	CPU       *CPUUsage
	Memory    *MemoryUsage
	Network   *NetworkUsage
	IO        *IOUsage
	Processes *ProcessUsage

	Containers []ContainerStats
}

// ContainerStats is what a container uses. Parts that the runtime does not report are nil.
type ContainerStats struct {
	ID          string
	Name        string
	Attempt     uint32
	PodUID      string
	Labels      map[string]string
	Annotations map[string]string

	CPU           *CPUUsage
	Memory        *MemoryUsage
	Swap          *SwapUsage
	IO            *IOUsage
	WritableLayer *FilesystemUsage
}

// CPUUsage counts CPU time.
type CPUUsage struct {
	At            time.Time
	UsedNanos     uint64  // core-nanoseconds since the start
	UsedNanoCores *uint64 // recent rate, when the runtime keeps one
	PSI           *PSI
}

// MemoryUsage is in bytes.
type MemoryUsage struct {
	At              time.Time
	WorkingSet      *uint64
	Available       *uint64
	Usage           *uint64
	RSS             *uint64
	PageFaults      *uint64
	MajorPageFaults *uint64
	PSI             *PSI
}

// SwapUsage is in bytes.
type SwapUsage struct {
	At        time.Time
	Available *uint64
	Usage     *uint64
}

// IOUsage holds the pressure on input and output.
type IOUsage struct {
	At  time.Time
	PSI *PSI
}

// ProcessUsage counts processes.
type ProcessUsage struct {
	At    time.Time
	Count uint64
}

// NetworkUsage counts traffic. The first interface is the default one.
type NetworkUsage struct {
	At         time.Time
	Interfaces []InterfaceUsage
}

// InterfaceUsage counts one interface's traffic.
type InterfaceUsage struct {
	Name     string
	RxBytes  uint64
	RxErrors uint64
	TxBytes  uint64
	TxErrors uint64
}

// PSI is pressure stall information of a cgroup.
type PSI struct {
	Some PSIData
	Full PSIData
}

// PSIData is one line of a pressure file.
type PSIData struct {
	TotalNanos uint64
	Avg10      float64 // percent
	Avg60      float64
	Avg300     float64
}
