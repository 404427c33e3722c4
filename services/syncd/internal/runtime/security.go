package runtime

import (
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/cri"
)

var (
	defaultMaskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	defaultReadOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func namespaces(p *v1.Pod) cri.Namespaces {
	ns := cri.Namespaces{PID: cri.NamespaceContainer}
	if isTrue(p.Spec.ShareProcessNamespace) {
		ns.PID = cri.NamespacePod
	}
	if p.Spec.HostPID {
		ns.PID = cri.NamespaceNode
	}
	if p.Spec.HostIPC {
		ns.IPC = cri.NamespaceNode
	}
	if p.Spec.HostNetwork {
		ns.Network = cri.NamespaceNode
	}
	return ns
}

func sandboxSecurity(p *v1.Pod) cri.SandboxSecurity {
	s := cri.SandboxSecurity{Namespaces: namespaces(p), Seccomp: &cri.SecurityProfile{Type: cri.ProfileRuntimeDefault}}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
				s.Privileged = true
			}
		}
	}
	sc := p.Spec.SecurityContext
	if sc == nil {
		return s
	}
	s.RunAsUser, s.SELinux = sc.RunAsUser, selinux(sc.SELinuxOptions)
	if s.RunAsUser != nil {
		s.RunAsGroup = sc.RunAsGroup
	}
	s.SupplementalGroups, s.StrictGroups = groups(sc)
	return s
}

func groups(sc *v1.PodSecurityContext) (list []int64, strict bool) {
	if sc.FSGroup != nil {
		list = append(list, *sc.FSGroup)
	}
	list = append(list, sc.SupplementalGroups...)
	return list, sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
}

// containerSecurity merges the container's security context over the pod's and the image's user.
func (e *Executor) containerSecurity(p *v1.Pod, c *v1.Container, image *cri.Image) (cri.ContainerSecurity, error) {
	s := cri.ContainerSecurity{Namespaces: namespaces(p), MaskedPaths: defaultMaskedPaths, ReadOnlyPaths: defaultReadOnlyPaths}
	pc, cc := p.Spec.SecurityContext, c.SecurityContext
	if pc == nil {
		pc = &v1.PodSecurityContext{}
	}
	if cc == nil {
		cc = &v1.SecurityContext{}
	}
	s.RunAsUser, s.RunAsGroup = pick(cc.RunAsUser, pc.RunAsUser), pick(cc.RunAsGroup, pc.RunAsGroup)
	if isTrue(pick(cc.RunAsNonRoot, pc.RunAsNonRoot)) {
		if err := checkNonRoot(c.Name, s.RunAsUser, image); err != nil {
			return s, err
		}
	}
	if s.RunAsUser == nil {
		s.RunAsUser, s.RunAsUsername = image.UID, image.Username
	}
	if s.RunAsUser == nil && s.RunAsUsername == "" {
		root := int64(0)
		s.RunAsUser = &root
	}
	s.SupplementalGroups, s.StrictGroups = groups(pc)
	s.SELinux = selinux(pick(cc.SELinuxOptions, pc.SELinuxOptions))
	s.Privileged = isTrue(cc.Privileged)
	s.ReadOnlyRootFS = isTrue(cc.ReadOnlyRootFilesystem)
	s.NoNewPrivs = cc.AllowPrivilegeEscalation != nil && !*cc.AllowPrivilegeEscalation
	if caps := cc.Capabilities; caps != nil {
		s.Capabilities = &cri.Capabilities{Add: capabilities(caps.Add), Drop: capabilities(caps.Drop)}
	}
	if s.Privileged || (cc.ProcMount != nil && *cc.ProcMount == v1.UnmaskedProcMount) {
		s.MaskedPaths, s.ReadOnlyPaths = nil, nil
	}
	var err error
	if s.Seccomp, err = e.seccomp(pick(cc.SeccompProfile, pc.SeccompProfile)); err != nil {
		return s, err
	}
	s.AppArmor = apparmor(pick(cc.AppArmorProfile, pc.AppArmorProfile))
	return s, nil
}

// pick returns the container's setting, or the pod's.
func pick[T any](container, pod *T) *T {
	if container != nil {
		return container
	}
	return pod
}

func capabilities(list []v1.Capability) []string {
	var names []string
	for _, c := range list {
		names = append(names, string(c))
	}
	return names
}

func selinux(o *v1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// checkNonRoot refuses a container that would run as root, or of which that can't be told.
func checkNonRoot(name string, user *int64, image *cri.Image) error {
	switch {
	case user != nil && *user == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy (container: %s)", name)
	case user != nil:
		return nil
	case image.UID != nil && *image.UID == 0, image.UID == nil && image.Username == "":
		return fmt.Errorf("container has runAsNonRoot and image will run as root (container: %s)", name)
	case image.UID == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (container: %s)", image.Username, name)
	}
	return nil
}

// seccomp is the profile that was asked for, else the node's default.
func (e *Executor) seccomp(p *v1.SeccompProfile) (*cri.SecurityProfile, error) {
	if p == nil && e.cfg.SeccompDefault {
		return &cri.SecurityProfile{Type: cri.ProfileRuntimeDefault}, nil
	}
	if p == nil {
		return &cri.SecurityProfile{Type: cri.ProfileUnconfined}, nil
	}
	switch p.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{Type: cri.ProfileRuntimeDefault}, nil
	case v1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil || !filepath.IsLocal(*p.LocalhostProfile) {
			return nil, fmt.Errorf("seccompProfile: localhostProfile must be a relative path below the node's seccomp directory")
		}
		return &cri.SecurityProfile{Type: cri.ProfileLocalhost, Localhost: filepath.Join(e.cfg.Root, "seccomp", *p.LocalhostProfile)}, nil
	}
	return &cri.SecurityProfile{Type: cri.ProfileUnconfined}, nil
}

func apparmor(p *v1.AppArmorProfile) *cri.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &cri.SecurityProfile{Type: cri.ProfileRuntimeDefault}
	case v1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile != nil {
			return &cri.SecurityProfile{Type: cri.ProfileLocalhost, Localhost: *p.LocalhostProfile}
		}
	}
	return &cri.SecurityProfile{Type: cri.ProfileUnconfined}
}
