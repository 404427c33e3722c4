package admission

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateContainers(s *v1.PodSpec, volumes map[string]*v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	if len(s.Containers) == 0 {
		list = append(list, field.Required(p.Child("containers"), "must have at least one container"))
	}
	names := make(map[string]bool)
	ports := make(map[hostPort]bool)
	check := func(c *v1.Container, at *field.Path, initial bool) {
		list = append(list, invalidIf(at.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))...)
		if names[c.Name] {
			list = append(list, field.Duplicate(at.Child("name"), c.Name))
		}
		names[c.Name] = true
		list = append(list, validateContainer(c, volumes, at)...)
		list = append(list, validatePorts(c.Ports, s.HostNetwork, ports, at.Child("ports"))...)
		list = append(list, validateRole(c, initial, at)...)
		list = append(list, validateLifecycle(c.Lifecycle, s, at.Child("lifecycle"))...)
	}
	for i := range s.InitContainers {
		check(&s.InitContainers[i], p.Child("initContainers").Index(i), true)
	}
	// Init containers have ended, or are sidecars, when these run: only sidecars share the node's ports with them, and Kubernetes
	// counts the init containers' ports too.
	for i := range s.Containers {
		check(&s.Containers[i], p.Child("containers").Index(i), false)
	}
	return list
}

func validateContainer(c *v1.Container, volumes map[string]*v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	switch {
	case c.Image == "":
		list = append(list, field.Required(p.Child("image"), "must name an image"))
	case strings.TrimSpace(c.Image) != c.Image:
		list = append(list, field.Invalid(p.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	list = append(list, enum(p.Child("imagePullPolicy"), c.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	list = append(list, enum(p.Child("terminationMessagePolicy"), c.TerminationMessagePolicy, v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)...)
	list = append(list, validateEnv(c.Env, volumes, p.Child("env"))...)
	list = append(list, validateEnvFrom(c.EnvFrom, p.Child("envFrom"))...)
	list = append(list, validateMounts(c, volumes, p)...)
	list = append(list, validateResources(&c.Resources, p.Child("resources"))...)
	list = append(list, validateResizePolicy(c.ResizePolicy, p.Child("resizePolicy"))...)
	list = append(list, validateSecurity(c.SecurityContext, p.Child("securityContext"))...)
	list = append(list, validateProbe(c.LivenessProbe, liveness, p.Child("livenessProbe"))...)
	list = append(list, validateProbe(c.StartupProbe, startup, p.Child("startupProbe"))...)
	return append(list, validateProbe(c.ReadinessProbe, readiness, p.Child("readinessProbe"))...)
}

// validateRole checks what depends on whether it is an init container, a sidecar or a regular container.
func validateRole(c *v1.Container, initial bool, p *field.Path) field.ErrorList {
	list := validateRestart(c, p)
	if !initial || (c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways) {
		return list
	}
	const why = "may not be set for init containers without restartPolicy=Always"
	for _, f := range []struct {
		set  bool
		name string
	}{
		{c.Lifecycle != nil, "lifecycle"},
		{c.LivenessProbe != nil, "livenessProbe"},
		{c.ReadinessProbe != nil, "readinessProbe"},
		{c.StartupProbe != nil, "startupProbe"},
	} {
		if f.set {
			list = append(list, field.Forbidden(p.Child(f.name), why))
		}
	}
	return list
}

const (
	maxRestartRules = 20
	maxExitCodes    = 255
)

// validateRestart checks the container's own restart policy and rules.
func validateRestart(c *v1.Container, p *field.Path) field.ErrorList {
	var list field.ErrorList
	if c.RestartPolicy != nil {
		list = append(list, enum(p.Child("restartPolicy"), *c.RestartPolicy,
			v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)...)
	}
	at := p.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > 0 && c.RestartPolicy == nil {
		list = append(list, field.Required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		list = append(list, field.TooMany(at, n, maxRestartRules))
	}
	for i, r := range c.RestartPolicyRules {
		list = append(list, enum(at.Index(i).Child("action"), r.Action, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers)...)
		codes := at.Index(i).Child("exitCodes")
		if r.ExitCodes == nil {
			list = append(list, field.Required(codes, "must be specified"))
			continue
		}
		list = append(list, enum(codes.Child("operator"), r.ExitCodes.Operator, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > maxExitCodes {
			list = append(list, field.TooMany(codes.Child("values"), n, maxExitCodes))
		}
	}
	return list
}

// hostPort is a port of the node as a pod asks for it.
type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

func validatePorts(ports []v1.ContainerPort, hostNetwork bool, taken map[hostPort]bool, p *field.Path) field.ErrorList {
	var list field.ErrorList
	names := make(map[string]bool)
	for i, x := range ports {
		at := p.Index(i)
		if x.Name != "" {
			list = append(list, invalidIf(at.Child("name"), x.Name, validation.IsValidPortName(x.Name))...)
			if names[x.Name] {
				list = append(list, field.Duplicate(at.Child("name"), x.Name))
			}
			names[x.Name] = true
		}
		if x.ContainerPort == 0 {
			list = append(list, field.Required(at.Child("containerPort"), validation.InclusiveRangeError(1, 65535)))
		} else {
			list = append(list, invalidIf(at.Child("containerPort"), "", validation.IsValidPortNum(int(x.ContainerPort)))...)
		}
		list = append(list, enum(at.Child("protocol"), x.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
		if x.HostIP != "" {
			list = append(list, validateIP(at.Child("hostIP"), x.HostIP)...)
		}
		if x.HostPort == 0 {
			continue
		}
		list = append(list, invalidIf(at.Child("hostPort"), "", validation.IsValidPortNum(int(x.HostPort)))...)
		if hostNetwork && x.HostPort != x.ContainerPort {
			list = append(list, field.Invalid(at.Child("hostPort"), x.HostPort, "must match `containerPort` when `hostNetwork` is true"))
		}
		h := hostPort{x.HostIP, x.Protocol, x.HostPort}
		if taken[h] {
			list = append(list, field.Duplicate(at.Child("hostPort"), fmt.Sprintf("%s/%s/%d", x.Protocol, x.HostIP, x.HostPort)))
		}
		taken[h] = true
	}
	return list
}

// fieldRefs are the fields of a pod that an environment variable can have.
var fieldRefs = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
	"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
}

// resourceRefs are the resources that an environment variable can have.
var resourceRefs = []string{
	"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory",
}

func validateEnv(env []v1.EnvVar, volumes map[string]*v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for i, e := range env {
		at := p.Index(i)
		if e.Name == "" {
			list = append(list, field.Required(at.Child("name"), "must not be empty"))
		} else {
			list = append(list, invalidIf(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		if e.ValueFrom == nil {
			continue
		}
		from := at.Child("valueFrom")
		if e.Value != "" {
			list = append(list, field.Invalid(from, "", "may not be specified when `value` is not empty"))
		}
		list = append(list, validateValueFrom(e.ValueFrom, volumes, from)...)
	}
	return list
}

func validateValueFrom(f *v1.EnvVarSource, volumes map[string]*v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	n := 0
	if r := f.FieldRef; r != nil {
		n++
		list = append(list, validateFieldRef(r, p.Child("fieldRef"))...)
	}
	if r := f.ResourceFieldRef; r != nil {
		n++
		at := p.Child("resourceFieldRef")
		if !slices.Contains(resourceRefs, r.Resource) && !strings.Contains(r.Resource, ".hugepages-") {
			list = append(list, field.NotSupported(at.Child("resource"), r.Resource, resourceRefs))
		}
		if r.Divisor.Sign() < 0 {
			list = append(list, field.Invalid(at.Child("divisor"), "", "must be greater than or equal to 0"))
		}
	}
	if r := f.ConfigMapKeyRef; r != nil {
		n++
		list = append(list, validateKeyRef(r.Name, r.Key, p.Child("configMapKeyRef"))...)
	}
	if r := f.SecretKeyRef; r != nil {
		n++
		list = append(list, validateKeyRef(r.Name, r.Key, p.Child("secretKeyRef"))...)
	}
	if r := f.FileKeyRef; r != nil {
		n++
		list = append(list, validateFileKeyRef(r, volumes, p.Child("fileKeyRef"))...)
	}
	switch {
	case n == 0:
		list = append(list, field.Required(p, "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case n > 1:
		list = append(list, field.Invalid(p, "", "may not have more than one field specified at a time"))
	}
	return list
}

// maxFileKey is the longest name of a variable in a file.
const maxFileKey = 128

func validateFileKeyRef(r *v1.FileKeySelector, volumes map[string]*v1.Volume, p *field.Path) field.ErrorList {
	var list field.ErrorList
	switch v := volumes[r.VolumeName]; {
	case r.VolumeName == "":
		list = append(list, field.Required(p.Child("volumeName"), "must name a volume of the pod"))
	case v == nil:
		list = append(list, field.NotFound(p.Child("volumeName"), r.VolumeName))
	case v.EmptyDir == nil:
		list = append(list, field.Invalid(p.Child("volumeName"), r.VolumeName, "must be an emptyDir volume"))
	}
	list = append(list, validateLocal(r.Path, p.Child("path"))...)
	switch {
	case r.Key == "":
		list = append(list, field.Required(p.Child("key"), "must name a variable in the file"))
	case len(r.Key) > maxFileKey:
		list = append(list, field.TooLong(p.Child("key"), r.Key, maxFileKey))
	default:
		list = append(list, invalidIf(p.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))...)
	}
	return list
}

func validateFieldRef(r *v1.ObjectFieldSelector, p *field.Path) field.ErrorList {
	list := enum(p.Child("apiVersion"), r.APIVersion, "v1")
	at := p.Child("fieldPath")
	if r.FieldPath == "" {
		return append(list, field.Required(at, "must be a field of the pod"))
	}
	for _, prefix := range []string{"metadata.labels['", "metadata.annotations['"} {
		if key, ok := strings.CutPrefix(r.FieldPath, prefix); ok && strings.HasSuffix(key, "']") {
			key = strings.TrimSuffix(key, "']")
			return append(list, invalidIf(at, r.FieldPath, validation.IsQualifiedName(strings.ToLower(key)))...)
		}
	}
	if !slices.Contains(fieldRefs, r.FieldPath) {
		list = append(list, field.NotSupported(at, r.FieldPath, append(slices.Clone(fieldRefs), "metadata.labels['<KEY>']", "metadata.annotations['<KEY>']")))
	}
	return list
}

func validateKeyRef(name, key string, p *field.Path) field.ErrorList {
	list := validateRef(p.Child("name"), name)
	if key == "" {
		return append(list, field.Required(p.Child("key"), "must be a key of the object"))
	}
	return append(list, invalidIf(p.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func validateEnvFrom(from []v1.EnvFromSource, p *field.Path) field.ErrorList {
	var list field.ErrorList
	for i, f := range from {
		at := p.Index(i)
		if f.Prefix != "" {
			list = append(list, invalidIf(at.Child("prefix"), f.Prefix, validation.IsRelaxedEnvVarName(f.Prefix))...)
		}
		switch {
		case f.ConfigMapRef != nil && f.SecretRef != nil:
			list = append(list, field.Invalid(at, "", "may not have more than one field specified at a time"))
		case f.ConfigMapRef != nil:
			list = append(list, validateRef(at.Child("configMapRef", "name"), f.ConfigMapRef.Name)...)
		case f.SecretRef != nil:
			list = append(list, validateRef(at.Child("secretRef", "name"), f.SecretRef.Name)...)
		default:
			list = append(list, field.Required(at, "must specify one of: `configMapRef` or `secretRef`"))
		}
	}
	return list
}
