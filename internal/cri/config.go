package cri

import "github.com/podplane/podplane/internal/pod"

// SandboxConfig describes a sandbox to run.
type SandboxConfig struct {
	Name      string
	Namespace string
	UID       string
	Attempt   uint32

	Hostname     string // empty with the host's network
	LogDirectory string // absolute; containers' LogPath is below it
	DNS          *DNSConfig
	PortMappings []PortMapping
	// Labels and Annotations are stored with the sandbox. The node's label is added by the client.
	Labels      map[string]string
	Annotations map[string]string
	// RuntimeHandler is the runtime class's handler, empty for the default.
	RuntimeHandler string

	CgroupParent string
	Sysctls      map[string]string
	Security     SandboxSecurity
	Overhead     *pod.LinuxResources
	Resources    *pod.LinuxResources // sums of the containers'
}

// DNSConfig is what goes into /etc/resolv.conf. Nil leaves the runtime's default (the node's file).
type DNSConfig struct {
	Servers  []string
	Searches []string
	Options  []string
}

// Protocol of a port.
type Protocol uint8

// The protocols.
const (
	ProtocolTCP Protocol = iota
	ProtocolUDP
	ProtocolSCTP
)

// PortMapping maps a port of the node to one of the pod.
type PortMapping struct {
	Protocol      Protocol
	ContainerPort int32
	HostPort      int32
	HostIP        string // empty: all
}

// NamespaceMode says whose namespace a container uses.
type NamespaceMode uint8

// The modes.
const (
	NamespacePod       NamespaceMode = iota // shared by the pod's containers
	NamespaceContainer                      // the container's own
	NamespaceNode                           // the node's
	NamespaceTarget                         // another container's
)

// Namespaces says which namespaces a sandbox or a container uses. The zero value shares all of them in the pod;
// Kubernetes' default for PID is NamespaceContainer.
type Namespaces struct {
	Network  NamespaceMode
	PID      NamespaceMode
	IPC      NamespaceMode
	TargetID string // with PID NamespaceTarget
	// User, when not nil, gives the pod a user namespace.
	User *UserNamespace
}

// UserNamespace maps IDs of the pod to IDs of the node.
type UserNamespace struct {
	UIDs []pod.IDMapping
	GIDs []pod.IDMapping
}

// SecurityProfileType says which profile applies.
type SecurityProfileType uint8

// The profile types.
const (
	ProfileRuntimeDefault SecurityProfileType = iota
	ProfileUnconfined
	ProfileLocalhost
)

// SecurityProfile is a seccomp or AppArmor profile.
type SecurityProfile struct {
	Type SecurityProfileType
	// Localhost is the file (seccomp, absolute) or the name of the loaded profile (AppArmor).
	Localhost string
}

// SELinuxOption is an SELinux label.
type SELinuxOption struct {
	User  string
	Role  string
	Type  string
	Level string
}

// Capabilities are names without the prefix CAP_, or ALL.
type Capabilities struct {
	Add        []string
	Drop       []string
	AddAmbient []string
}

// SandboxSecurity is the security context of a sandbox.
type SandboxSecurity struct {
	Namespaces         Namespaces
	SELinux            *SELinuxOption
	RunAsUser          *int64
	RunAsGroup         *int64
	ReadOnlyRootFS     bool
	SupplementalGroups []int64
	// StrictGroups: only SupplementalGroups count, those of the image do not.
	StrictGroups bool
	Privileged   bool
	Seccomp      *SecurityProfile
	AppArmor     *SecurityProfile
}

// ContainerSecurity is the security context of a container.
type ContainerSecurity struct {
	Namespaces   Namespaces
	Capabilities *Capabilities
	Privileged   bool
	SELinux      *SELinuxOption
	RunAsUser    *int64
	RunAsGroup   *int64 // needs a user
	// RunAsUsername is looked up in the image's /etc/passwd.
	RunAsUsername      string
	ReadOnlyRootFS     bool
	SupplementalGroups []int64
	StrictGroups       bool
	NoNewPrivs         bool
	MaskedPaths        []string
	ReadOnlyPaths      []string
	Seccomp            *SecurityProfile
	AppArmor           *SecurityProfile
}

// EnvVar is one variable. Order counts: later wins.
type EnvVar struct {
	Name  string
	Value string
}

// Device is a device node to make available.
type Device struct {
	ContainerPath string
	HostPath      string
	Permissions   string // of "rwm"
}

// ContainerConfig describes a container to create.
type ContainerConfig struct {
	Name    string
	Attempt uint32 // the restart count
	Image   ImageSpec

	Command    []string // empty: the image's
	Args       []string // empty: the image's, when Command is empty too
	WorkingDir string
	Env        []EnvVar

	Mounts     []pod.Mount
	Devices    []Device
	CDIDevices []string

	// Labels and Annotations are stored with the container. The node's label is added by the client.
	Labels      map[string]string
	Annotations map[string]string
	LogPath     string // relative to the sandbox's LogDirectory; its directory must exist

	Stdin     bool
	StdinOnce bool
	TTY       bool
	// StopSignal is a name like SIGTERM, empty for the image's.
	StopSignal string

	Resources *pod.LinuxResources
	Security  ContainerSecurity
}

// ImageSpec names an image.
type ImageSpec struct {
	// Image is the reference or the ID to use; UserImage is what the user wrote, for the record.
	Image     string
	UserImage string
	// RuntimeHandler is for runtimes that keep images per handler.
	RuntimeHandler string
	Annotations    map[string]string
}

// AuthConfig holds credentials of a registry. It never appears in an error, a log or a span.
type AuthConfig struct {
	Username      string
	Password      string
	Auth          string // base64 of user:password
	ServerAddress string
	IdentityToken string
	RegistryToken string
}

// String hides the credentials from %v.
func (a *AuthConfig) String() string {
	if a == nil {
		return "no credentials"
	}
	return "credentials for " + a.ServerAddress
}

// GoString hides the credentials from %#v.
func (a *AuthConfig) GoString() string { return a.String() }
