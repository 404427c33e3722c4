package runtime

import (
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/services/syncd/internal/worker"
)

// environment is a container's variables, in order; a later one of the same name replaces.
type environment struct {
	list  []cri.EnvVar
	index map[string]int
}

func (e *environment) set(name, value string) {
	if i, ok := e.index[name]; ok {
		e.list[i].Value = value
		return
	}
	e.index[name] = len(e.list)
	e.list = append(e.list, cri.EnvVar{Name: name, Value: value})
}

func (e *environment) get(name string) (string, bool) {
	i, ok := e.index[name]
	if !ok {
		return "", false
	}
	return e.list[i].Value, true
}

// expand replaces $(NAME) by the variable's value. $$ stands for $; a reference to nothing is left as it is written.
func (e *environment) expand(s string) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			name := s[i+2 : i+end]
			if value, ok := e.get(name); ok {
				b.WriteString(value)
			} else {
				b.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// expandKnown is expand where a reference to nothing, or to what is empty, is an error.
func (e *environment) expandKnown(s string) (string, error) {
	var missing []string
	for _, name := range references(s) {
		if value, ok := e.get(name); !ok || value == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("missing value for %q", strings.Join(missing, ", "))
	}
	return e.expand(s), nil
}

// references are the names in $(NAME), leaving out what $$ escapes.
func references(s string) []string {
	var names []string
	for i := 0; i+1 < len(s); i++ {
		if s[i] != '$' {
			continue
		}
		switch s[i+1] {
		case '$':
			i++
		case '(':
			if end := strings.IndexByte(s[i:], ')'); end > 0 {
				names = append(names, s[i+2:i+end])
				i += end
			}
		}
	}
	return names
}

func (e *environment) expandAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = e.expand(s)
	}
	return out
}

// environment makes the container's variables: envFrom, then env; what can't be resolved is an error.
func (e *Executor) environment(r worker.StartRequest, c *v1.Container) (*environment, error) {
	p, env := r.Pod, &environment{index: make(map[string]int)}
	for i := range c.EnvFrom {
		if err := e.addFrom(env, p, c, &c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		if v.ValueFrom == nil {
			env.set(v.Name, env.expand(v.Value))
			continue
		}
		value, ok, err := e.valueFrom(r, c, v.ValueFrom)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", v.Name, err)
		}
		if ok {
			env.set(v.Name, value)
		}
	}
	return env, nil
}

func (e *Executor) addFrom(env *environment, p *v1.Pod, c *v1.Container, from *v1.EnvFromSource) error {
	var values map[string]string
	var source string
	switch {
	case from.ConfigMapRef != nil:
		source = fmt.Sprintf("ConfigMap %s/%s", p.Namespace, from.ConfigMapRef.Name)
		m, ok := e.objects.ConfigMap(p.Namespace, from.ConfigMapRef.Name)
		if !ok && !isTrue(from.ConfigMapRef.Optional) {
			return fmt.Errorf("configmap %q not found", from.ConfigMapRef.Name)
		}
		if ok {
			values = m.Data
		}
	case from.SecretRef != nil:
		source = fmt.Sprintf("Secret %s/%s", p.Namespace, from.SecretRef.Name)
		s, ok := e.objects.Secret(p.Namespace, from.SecretRef.Name)
		if !ok && !isTrue(from.SecretRef.Optional) {
			return fmt.Errorf("secret %q not found", from.SecretRef.Name)
		}
		if ok {
			values = make(map[string]string, len(s.Data))
			for k, v := range s.Data {
				values[k] = string(v)
			}
		}
	}
	var skipped []string
	for _, k := range sortedKeys(values) {
		name := from.Prefix + k
		if len(validation.IsRelaxedEnvVarName(name)) > 0 {
			skipped = append(skipped, name)
			continue
		}
		env.set(name, values[k])
	}
	if len(skipped) > 0 {
		e.events.PodEvent(p, c.Name, v1.EventTypeWarning, "InvalidEnvironmentVariableNames",
			fmt.Sprintf("Keys [%s] from the EnvFrom %s were skipped since they are considered invalid environment variable names.", strings.Join(skipped, ", "), source))
	}
	return nil
}

func (e *Executor) valueFrom(r worker.StartRequest, c *v1.Container, from *v1.EnvVarSource) (value string, ok bool, err error) {
	p := r.Pod
	switch {
	case from.FieldRef != nil:
		value, err = e.fieldValue(p, from.FieldRef.FieldPath, r.Sandbox.IPs)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = e.resourceValue(p, c, from.ResourceFieldRef)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		m, found := e.objects.ConfigMap(p.Namespace, ref.Name)
		if !found {
			return "", false, missing(ref.Optional, "configmap %q not found", ref.Name)
		}
		if value, ok = m.Data[ref.Key]; !ok {
			return "", false, missing(ref.Optional, "couldn't find key %v in ConfigMap %v/%v", ref.Key, p.Namespace, ref.Name)
		}
		return value, true, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, found := e.objects.Secret(p.Namespace, ref.Name)
		if !found {
			return "", false, missing(ref.Optional, "secret %q not found", ref.Name)
		}
		raw, has := s.Data[ref.Key]
		if !has {
			return "", false, missing(ref.Optional, "couldn't find key %v in Secret %v/%v", ref.Key, p.Namespace, ref.Name)
		}
		return string(raw), true, nil
	case from.FileKeyRef != nil:
		return fileValue(r.Volumes, from.FileKeyRef)
	}
	return "", false, fmt.Errorf("valueFrom has no source that this node supports")
}

func missing(optional *bool, format string, args ...any) error {
	if isTrue(optional) {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func isTrue(b *bool) bool { return b != nil && *b }

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// fieldValue reads a field of the pod that the downward API offers.
func (e *Executor) fieldValue(p *v1.Pod, path string, podIPs []string) (string, error) {
	if key, ok := subscript(path, "metadata.labels"); ok {
		return p.Labels[key], nil
	}
	if key, ok := subscript(path, "metadata.annotations"); ok {
		return p.Annotations[key], nil
	}
	if p.Spec.HostNetwork {
		podIPs = e.cfg.HostIPs
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		return e.cfg.Node, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(e.cfg.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(e.cfg.HostIPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// subscript splits metadata.labels['key'].
func subscript(path, of string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(path, of+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

// resourceValue reads a request or limit of a container, the node's allocatable amount where there is no limit.
func (e *Executor) resourceValue(p *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		other, err := find(p, ref.ContainerName)
		if err != nil {
			return "", err
		}
		c = other
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	var list v1.ResourceList
	switch {
	case ok && kind == "limits":
		list = c.Resources.Limits
	case ok && kind == "requests":
		list = c.Resources.Requests
	default:
		return "", fmt.Errorf("unsupported container resource: %v", ref.Resource)
	}
	quantity, has := list[v1.ResourceName(name)]
	if kind == "limits" && (!has || quantity.IsZero()) {
		quantity = e.cfg.Allocatable[v1.ResourceName(name)]
		if whole := p.Spec.Resources; whole != nil {
			if q, limited := whole.Limits[v1.ResourceName(name)]; limited {
				quantity = q
			}
		}
	}
	return divide(quantity, ref.Divisor, v1.ResourceName(name)), nil
}

// divide gives the quantity in units of the divisor (default 1), rounded up.
func divide(q, divisor resource.Quantity, name v1.ResourceName) string {
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == v1.ResourceCPU {
		return fmt.Sprint(int64(math.Ceil(float64(q.MilliValue()) / float64(divisor.MilliValue()))))
	}
	return fmt.Sprint(int64(math.Ceil(float64(q.Value()) / float64(divisor.Value()))))
}
