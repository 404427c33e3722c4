package plugin

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Pod is what the volumes of a pod are made from.
type Pod struct {
	UID, Namespace, Name string
	// FSGroup owns the volumes that Podplane makes, when not nil.
	FSGroup *int64
	// MemoryLimit is the pod's memory limit in bytes, 0 for none.
	MemoryLimit int64
	Volumes     []corev1.Volume
}

// podJSON is the part of a v1.Pod that is of interest here.
type podJSON struct {
	Spec struct {
		Volumes         []corev1.Volume              `json:"volumes"`
		SecurityContext *struct{ FSGroup *int64 }    `json:"securityContext"`
		Resources       *corev1.ResourceRequirements `json:"resources"`
		InitContainers  []containerJSON              `json:"initContainers"`
		Containers      []containerJSON              `json:"containers"`
	} `json:"spec"`
}

type containerJSON struct {
	Resources     corev1.ResourceRequirements    `json:"resources"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
}

// Decode reads a pod's record.
func Decode(r *podplanev1.PodRecord) (*Pod, error) {
	var j podJSON
	if err := json.Unmarshal(r.GetPod(), &j); err != nil {
		return nil, fmt.Errorf("decode pod %s/%s: %w", r.GetNamespace(), r.GetName(), err)
	}
	p := &Pod{UID: r.GetUid(), Namespace: r.GetNamespace(), Name: r.GetName()}
	// The container runtime mounts images itself.
	p.Volumes = slices.DeleteFunc(j.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil })
	if j.Spec.SecurityContext != nil {
		p.FSGroup = j.Spec.SecurityContext.FSGroup
	}
	p.MemoryLimit = memoryLimit(&j)
	return p, nil
}

// memoryLimit is the limit that the pod's containers have together; 0 when one of them has none.
func memoryLimit(j *podJSON) int64 {
	if r := j.Spec.Resources; r != nil {
		if q, ok := r.Limits[corev1.ResourceMemory]; ok {
			return q.Value()
		}
	}
	var sum, most int64
	add := func(limits corev1.ResourceList, to *int64) bool {
		q, ok := limits[corev1.ResourceMemory]
		*to += q.Value()
		return ok
	}
	for i := range j.Spec.InitContainers { // a sidecar runs beside everything after it, the others alone
		c := &j.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			if !add(c.Resources.Limits, &sum) {
				return 0
			}
			most = max(most, sum)
			continue
		}
		alone := sum
		if !add(c.Resources.Limits, &alone) {
			return 0
		}
		most = max(most, alone)
	}
	for i := range j.Spec.Containers {
		if !add(j.Spec.Containers[i].Resources.Limits, &sum) {
			return 0
		}
	}
	return max(most, sum)
}

// Names of the plugins.
const (
	EmptyDir  = "kubernetes.io/empty-dir"
	HostPath  = "kubernetes.io/host-path"
	ConfigMap = "kubernetes.io/configmap"
	Secret    = "kubernetes.io/secret"
)

// Of answers the name of the plugin that serves a volume, and the kind and name of the object that its content comes
// from. A volume that no plugin of this build serves has a name that says so, and its set-up fails.
func Of(v *corev1.Volume) (plugin, kind, object string) {
	switch {
	case v.EmptyDir != nil:
		return EmptyDir, "", ""
	case v.HostPath != nil:
		return HostPath, "", ""
	case v.ConfigMap != nil:
		return ConfigMap, kindConfigMap, v.ConfigMap.Name
	case v.Secret != nil:
		return Secret, kindSecret, v.Secret.SecretName
	default:
		return "kubernetes.io/unsupported", "", ""
	}
}

// Kinds of objects, as in the keys of bucket "objects".
const (
	kindConfigMap = "configmap"
	kindSecret    = "secret"
)

// dirName is the name of a plugin's directory below a pod's volumes.
func dirName(plugin string) string { return strings.ReplaceAll(plugin, "/", "~") }

// checkName refuses names that are not a name of one directory.
func checkName(what, name string) error {
	if name == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") || !filepath.IsLocal(name) {
		return fmt.Errorf("%s %q: must be the name of a directory", what, name)
	}
	return nil
}

// quantity is the value of a limit, 0 for none.
func quantity(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}
