package admission

import (
	"math"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// safeSysctls are those that Kubernetes lets every pod set, as they are bounded to it.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}

func validatePodSecurity(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	if s.ShareProcessNamespace != nil && *s.ShareProcessNamespace && s.HostPID {
		list = append(list, field.Invalid(p.Child("shareProcessNamespace"), true, "may not be used together with hostPID"))
	}
	list = append(list, validateUserNamespace(s, p)...)
	c, at := s.SecurityContext, p.Child("securityContext")
	if c == nil {
		return list
	}
	list = append(list, validateIDs(at, map[string]*int64{"runAsUser": c.RunAsUser, "runAsGroup": c.RunAsGroup, "fsGroup": c.FSGroup})...)
	for i, g := range c.SupplementalGroups {
		list = append(list, validateID(at.Child("supplementalGroups").Index(i), g)...)
	}
	if c.FSGroupChangePolicy != nil {
		list = append(list, enum(at.Child("fsGroupChangePolicy"), *c.FSGroupChangePolicy, v1.FSGroupChangeAlways, v1.FSGroupChangeOnRootMismatch)...)
	}
	if c.SupplementalGroupsPolicy != nil {
		list = append(list, enum(at.Child("supplementalGroupsPolicy"), *c.SupplementalGroupsPolicy, v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict)...)
	}
	if c.WindowsOptions != nil {
		list = append(list, notHere(at.Child("windowsOptions"), "options of Windows"))
	}
	list = append(list, validateSysctls(c.Sysctls, s, at.Child("sysctls"))...)
	list = append(list, validateSeccomp(c.SeccompProfile, at.Child("seccompProfile"))...)
	return append(list, validateAppArmor(c.AppArmorProfile, at.Child("appArmorProfile"))...)
}

// validateUserNamespace checks what a user namespace excludes and what needs one.
func validateUserNamespace(s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	own := ownUsers(s)
	for _, host := range []struct {
		set  bool
		name string
	}{{s.HostNetwork, "hostNetwork"}, {s.HostPID, "hostPID"}, {s.HostIPC, "hostIPC"}} {
		if own && host.set {
			list = append(list, field.Forbidden(p.Child(host.name), "may not be true when `hostUsers` is false"))
		}
	}
	for _, containers := range []struct {
		name string
		list []v1.Container
	}{{"initContainers", s.InitContainers}, {"containers", s.Containers}} {
		for i := range containers.list {
			list = append(list, validateProcMount(&containers.list[i], own, p.Child(containers.name).Index(i))...)
		}
	}
	return list
}

// ownUsers says whether the pod has user IDs of its own.
func ownUsers(s *v1.PodSpec) bool { return s.HostUsers != nil && !*s.HostUsers }

func validateProcMount(c *v1.Container, ownUsers bool, p *field.Path) field.ErrorList {
	sc := c.SecurityContext
	if ownUsers || sc == nil || sc.ProcMount == nil || *sc.ProcMount != v1.UnmaskedProcMount {
		return nil
	}
	return field.ErrorList{field.Invalid(p.Child("securityContext", "procMount"), *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")}
}

func validateSysctls(sysctls []v1.Sysctl, s *v1.PodSpec, p *field.Path) field.ErrorList {
	var list field.ErrorList
	seen := make(map[string]bool)
	for i, x := range sysctls {
		at := p.Index(i).Child("name")
		name := strings.ReplaceAll(x.Name, "/", ".")
		switch {
		case name == "":
			list = append(list, field.Required(at, "must name a sysctl"))
		case seen[name]:
			list = append(list, field.Duplicate(at, x.Name))
		case len(validation.IsDNS1123SubdomainWithUnderscore(strings.ToLower(name))) > 0:
			list = append(list, field.Invalid(at, x.Name, "must be the name of a kernel parameter, its parts parted by dots or slashes"))
		case s.HostNetwork && strings.HasPrefix(name, "net."):
			list = append(list, field.Invalid(at, x.Name, "may not be specified when 'hostNetwork' is true"))
		case s.HostIPC && strings.HasPrefix(name, "kernel.shm"):
			list = append(list, field.Invalid(at, x.Name, "may not be specified when 'hostIPC' is true"))
		}
		seen[name] = true
	}
	return list
}

func validateIDs(p *field.Path, ids map[string]*int64) field.ErrorList {
	var list field.ErrorList
	for _, name := range []string{"runAsUser", "runAsGroup", "fsGroup"} {
		if id := ids[name]; id != nil {
			list = append(list, validateID(p.Child(name), *id)...)
		}
	}
	return list
}

func validateID(p *field.Path, id int64) field.ErrorList {
	if id < 0 || id > math.MaxInt32 {
		return field.ErrorList{field.Invalid(p, id, "must be between 0 and 2147483647, inclusive")}
	}
	return nil
}

func validateSecurity(c *v1.SecurityContext, p *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	list := validateIDs(p, map[string]*int64{"runAsUser": c.RunAsUser, "runAsGroup": c.RunAsGroup})
	if c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation {
		at := p.Child("allowPrivilegeEscalation")
		if c.Privileged != nil && *c.Privileged {
			list = append(list, field.Invalid(at, false, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if c.Capabilities != nil && slices.ContainsFunc(c.Capabilities.Add, isSysAdmin) {
			list = append(list, field.Invalid(at, false, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	if c.ProcMount != nil {
		list = append(list, enum(p.Child("procMount"), *c.ProcMount, v1.DefaultProcMount, v1.UnmaskedProcMount)...)
	}
	if c.WindowsOptions != nil {
		list = append(list, notHere(p.Child("windowsOptions"), "options of Windows"))
	}
	list = append(list, validateSeccomp(c.SeccompProfile, p.Child("seccompProfile"))...)
	return append(list, validateAppArmor(c.AppArmorProfile, p.Child("appArmorProfile"))...)
}

func isSysAdmin(c v1.Capability) bool { return c == "CAP_SYS_ADMIN" || c == "SYS_ADMIN" }

func validateSeccomp(s *v1.SeccompProfile, p *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	list := enum(p.Child("type"), s.Type, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined, v1.SeccompProfileTypeLocalhost)
	at := p.Child("localhostProfile")
	local := s.Type == v1.SeccompProfileTypeLocalhost
	switch {
	case local && (s.LocalhostProfile == nil || *s.LocalhostProfile == ""):
		list = append(list, field.Required(at, "must be set when seccomp type is Localhost"))
	case local && (path.IsAbs(*s.LocalhostProfile) || hasDotDot(*s.LocalhostProfile)):
		list = append(list, field.Invalid(at, *s.LocalhostProfile, "must be a relative path without '..'"))
	case !local && s.LocalhostProfile != nil:
		list = append(list, field.Invalid(at, *s.LocalhostProfile, "can only be set when seccomp type is Localhost"))
	}
	return list
}

func validateAppArmor(a *v1.AppArmorProfile, p *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	list := enum(p.Child("type"), a.Type, v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined, v1.AppArmorProfileTypeLocalhost)
	at := p.Child("localhostProfile")
	local := a.Type == v1.AppArmorProfileTypeLocalhost
	switch {
	case local && (a.LocalhostProfile == nil || strings.TrimSpace(*a.LocalhostProfile) == ""):
		list = append(list, field.Required(at, "must be set when AppArmor type is Localhost"))
	case !local && a.LocalhostProfile != nil:
		list = append(list, field.Invalid(at, *a.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
	}
	return list
}
