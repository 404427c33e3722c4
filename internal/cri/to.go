package cri

import (
	"maps"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

// podLabels returns the labels with those added that say whose the sandbox or container is; container is empty for
// sandboxes. The client relies on them in lists, so that they are not left to the callers.
func podLabels(labels map[string]string, s *SandboxConfig, container, node string) map[string]string {
	all := make(map[string]string, len(labels)+5)
	maps.Copy(all, labels)
	all[pod.LabelPodName], all[pod.LabelPodNamespace], all[pod.LabelPodUID] = s.Name, s.Namespace, s.UID
	if container != "" {
		all[pod.LabelContainerName] = container
	}
	if node != "" {
		all[pod.LabelNode] = node
	}
	return all
}

func (c *Client) sandboxConfig(s *SandboxConfig) *runtimeapi.PodSandboxConfig {
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: s.Name, Uid: s.UID, Namespace: s.Namespace, Attempt: s.Attempt},
		Hostname:     s.Hostname,
		LogDirectory: s.LogDirectory,
		Labels:       podLabels(s.Labels, s, "", c.node),
		Annotations:  s.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    s.CgroupParent,
			Sysctls:         s.Sysctls,
			Overhead:        toResources(s.Overhead),
			Resources:       toResources(s.Resources),
			SecurityContext: toSandboxSecurity(&s.Security),
		},
	}
	if s.DNS != nil {
		config.DnsConfig = &runtimeapi.DNSConfig{Servers: s.DNS.Servers, Searches: s.DNS.Searches, Options: s.DNS.Options}
	}
	for _, p := range s.PortMappings {
		config.PortMappings = append(config.PortMappings, &runtimeapi.PortMapping{
			Protocol: runtimeapi.Protocol(p.Protocol), ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
		})
	}
	return config
}

func toSandboxSecurity(s *SandboxSecurity) *runtimeapi.LinuxSandboxSecurityContext {
	return &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:         toNamespaces(&s.Namespaces),
		SelinuxOptions:           toSELinux(s.SELinux),
		RunAsUser:                toInt64(s.RunAsUser),
		RunAsGroup:               toInt64(s.RunAsGroup),
		ReadonlyRootfs:           s.ReadOnlyRootFS,
		SupplementalGroups:       s.SupplementalGroups,
		SupplementalGroupsPolicy: toGroupsPolicy(s.StrictGroups),
		Privileged:               s.Privileged,
		Seccomp:                  toProfile(s.Seccomp),
		Apparmor:                 toProfile(s.AppArmor),
	}
}

// The real-time signals are SIGRTMIN+1 everywhere but in CRI, which has words for the signs.
var (
	signalWord = strings.NewReplacer("+", "PLUS", "-", "MINUS")
	signalSign = strings.NewReplacer("PLUS", "+", "MINUS", "-")
)

func (c *Client) containerConfig(ctr *ContainerConfig, s *SandboxConfig) (*runtimeapi.ContainerConfig, error) {
	signal, ok := runtimeapi.Signal_value[signalWord.Replace(ctr.StopSignal)]
	if !ok && ctr.StopSignal != "" {
		return nil, fault.New(fault.Invalid, "stop signal %q is not one that the container runtime interface knows", ctr.StopSignal)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: ctr.Name, Attempt: ctr.Attempt},
		Image:       toImageSpec(ctr.Image),
		Command:     ctr.Command,
		Args:        ctr.Args,
		WorkingDir:  ctr.WorkingDir,
		Labels:      podLabels(ctr.Labels, s, ctr.Name, c.node),
		Annotations: ctr.Annotations,
		LogPath:     ctr.LogPath,
		Stdin:       ctr.Stdin,
		StdinOnce:   ctr.StdinOnce,
		Tty:         ctr.TTY,
		StopSignal:  runtimeapi.Signal(signal),
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       toResources(ctr.Resources),
			SecurityContext: toContainerSecurity(&ctr.Security),
		},
	}
	for _, e := range ctr.Env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: e.Name, Value: []byte(e.Value)})
	}
	for i := range ctr.Mounts {
		config.Mounts = append(config.Mounts, toMount(&ctr.Mounts[i]))
	}
	for _, d := range ctr.Devices {
		config.Devices = append(config.Devices, &runtimeapi.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	for _, name := range ctr.CDIDevices {
		config.CDIDevices = append(config.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	return config, nil
}

func toContainerSecurity(s *ContainerSecurity) *runtimeapi.LinuxContainerSecurityContext {
	security := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:               s.Privileged,
		NamespaceOptions:         toNamespaces(&s.Namespaces),
		SelinuxOptions:           toSELinux(s.SELinux),
		RunAsUser:                toInt64(s.RunAsUser),
		RunAsGroup:               toInt64(s.RunAsGroup),
		RunAsUsername:            s.RunAsUsername,
		ReadonlyRootfs:           s.ReadOnlyRootFS,
		SupplementalGroups:       s.SupplementalGroups,
		SupplementalGroupsPolicy: toGroupsPolicy(s.StrictGroups),
		NoNewPrivs:               s.NoNewPrivs,
		MaskedPaths:              s.MaskedPaths,
		ReadonlyPaths:            s.ReadOnlyPaths,
		Seccomp:                  toProfile(s.Seccomp),
		Apparmor:                 toProfile(s.AppArmor),
	}
	if caps := s.Capabilities; caps != nil {
		security.Capabilities = &runtimeapi.Capability{
			AddCapabilities: caps.Add, DropCapabilities: caps.Drop, AddAmbientCapabilities: caps.AddAmbient,
		}
	}
	return security
}

func toNamespaces(n *Namespaces) *runtimeapi.NamespaceOption {
	option := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode(n.Network), Pid: runtimeapi.NamespaceMode(n.PID), Ipc: runtimeapi.NamespaceMode(n.IPC), TargetId: n.TargetID,
	}
	if n.User != nil {
		option.UsernsOptions = &runtimeapi.UserNamespace{
			Mode: runtimeapi.NamespaceMode_POD, Uids: toIDMappings(n.User.UIDs), Gids: toIDMappings(n.User.GIDs),
		}
	}
	return option
}

func toIDMappings(list []pod.IDMapping) []*runtimeapi.IDMapping {
	var mappings []*runtimeapi.IDMapping
	for _, m := range list {
		mappings = append(mappings, &runtimeapi.IDMapping{HostId: m.HostID, ContainerId: m.ContainerID, Length: m.Length})
	}
	return mappings
}

func toSELinux(o *SELinuxOption) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func toInt64(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

func toGroupsPolicy(strict bool) runtimeapi.SupplementalGroupsPolicy {
	if strict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func toProfile(p *SecurityProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_ProfileType(p.Type), LocalhostRef: p.Localhost}
}

func toMount(m *pod.Mount) *runtimeapi.Mount {
	mount := &runtimeapi.Mount{
		ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly,
		SelinuxRelabel: m.SELinuxRelabel, Propagation: runtimeapi.MountPropagation(m.Propagation),
		UidMappings: toIDMappings(m.UIDMappings), GidMappings: toIDMappings(m.GIDMappings), ImageSubPath: m.ImageSubPath,
	}
	if m.Image != "" {
		mount.Image = &runtimeapi.ImageSpec{Image: m.Image}
	}
	return mount
}

func toResources(r *pod.LinuxResources) *runtimeapi.LinuxContainerResources {
	if r == nil {
		return nil
	}
	resources := &runtimeapi.LinuxContainerResources{
		CpuPeriod: r.CPUPeriod, CpuQuota: r.CPUQuota, CpuShares: r.CPUShares,
		MemoryLimitInBytes: r.MemoryLimitBytes, MemorySwapLimitInBytes: r.MemorySwapLimit, OomScoreAdj: r.OOMScoreAdj,
		CpusetCpus: r.CPUSetCPUs, CpusetMems: r.CPUSetMems, Unified: r.Unified,
	}
	for _, h := range r.HugepageLimits {
		resources.HugepageLimits = append(resources.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.PageSize, Limit: h.Limit})
	}
	return resources
}

func toContainerState(s pod.ContainerState) runtimeapi.ContainerState {
	switch s {
	case pod.ContainerCreated:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case pod.ContainerRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case pod.ContainerExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
}

func toImageSpec(i ImageSpec) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: i.Image, UserSpecifiedImage: i.UserImage, RuntimeHandler: i.RuntimeHandler, Annotations: i.Annotations}
}

func toAuth(a *AuthConfig) *runtimeapi.AuthConfig {
	if a == nil {
		return nil
	}
	return &runtimeapi.AuthConfig{
		Username: a.Username, Password: a.Password, Auth: a.Auth, ServerAddress: a.ServerAddress,
		IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	}
}
