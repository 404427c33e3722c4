package admission

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
)

const updateWords = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)"

// Update defaults and validates a new form of an existing pod, and sets its generation. It changes pod.
func (n Node) Update(pod, old *v1.Pod) error {
	list := n.identify(pod, old.Namespace)
	meta := field.NewPath("metadata")
	if pod.Name != old.Name {
		list = append(list, field.Invalid(meta.Child("name"), pod.Name, "must be the name of the request"))
	}
	pod.GenerateName = old.GenerateName
	Defaults(pod)
	inherit(&pod.Spec, &old.Spec)
	sent := pod.Spec.EphemeralContainers
	pod.Spec.EphemeralContainers = nil // they were checked when they were added
	list = append(list, Validate(pod)...)
	pod.Spec.EphemeralContainers = sent
	if len(list) == 0 {
		list = validateChange(&pod.Spec, &old.Spec)
	}
	if len(list) > 0 {
		return fault.Invalidate(about(pod), list)
	}
	pod.Generation = old.Generation
	if !apiequality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		pod.Generation++
	}
	return nil
}

// inherit takes over from the old form what the node filled in when the pod was created, unless the client says otherwise.
func inherit(s, old *v1.PodSpec) {
	if len(s.Overhead) == 0 {
		s.Overhead = old.Overhead
	}
}

func validateChange(s, old *v1.PodSpec) field.ErrorList {
	p := field.NewPath("spec")
	if len(s.Containers) != len(old.Containers) {
		return field.ErrorList{field.Forbidden(p.Child("containers"), "pod updates may not add or remove containers")}
	}
	if len(s.InitContainers) != len(old.InitContainers) {
		return field.ErrorList{field.Forbidden(p.Child("initContainers"), "pod updates may not add or remove containers")}
	}
	list := validateDeadlineChange(s.ActiveDeadlineSeconds, old.ActiveDeadlineSeconds, p.Child("activeDeadlineSeconds"))
	list = append(list, validateTolerationsChange(s.Tolerations, old.Tolerations, p.Child("tolerations"))...)

	munged := s.DeepCopy()
	for i := range munged.Containers {
		munged.Containers[i].Image = old.Containers[i].Image
		samePull(&munged.Containers[i], &old.Containers[i], &s.Containers[i])
	}
	for i := range munged.InitContainers {
		munged.InitContainers[i].Image = old.InitContainers[i].Image
		samePull(&munged.InitContainers[i], &old.InitContainers[i], &s.InitContainers[i])
	}
	munged.ActiveDeadlineSeconds = old.ActiveDeadlineSeconds
	munged.Tolerations = old.Tolerations
	if apiequality.Semantic.DeepEqual(munged, old) {
		return list
	}
	for _, at := range changed(munged, old) {
		list = append(list, field.Forbidden(field.NewPath("spec"+at), updateWords))
	}
	return list
}

// samePull lets a pull policy that was only a default follow the new image: a client that sends the object without it means no change.
func samePull(munged, old, sent *v1.Container) {
	if sent.Image != old.Image && sent.ImagePullPolicy == pullPolicy(sent.Image) {
		munged.ImagePullPolicy = old.ImagePullPolicy
		sent.ImagePullPolicy = old.ImagePullPolicy
	}
}

func validateDeadlineChange(d, old *int64, p *field.Path) field.ErrorList {
	switch {
	case old == nil && d == nil, d != nil && old == nil, d != nil && *d <= *old:
		if d != nil && (*d < 0 || *d > math.MaxInt32) {
			return field.ErrorList{field.Invalid(p, *d, "must be between 0 and 2147483647, inclusive")}
		}
		return nil
	case d == nil:
		return field.ErrorList{field.Invalid(p, "", "must not update from a positive integer to nil value")}
	}
	return field.ErrorList{field.Invalid(p, *d, fmt.Sprintf("must be less than or equal to previous value, %d", *old))}
}

func validateTolerationsChange(t, old []v1.Toleration, p *field.Path) field.ErrorList {
	for _, o := range old {
		if !slices.ContainsFunc(t, func(x v1.Toleration) bool { return x.MatchToleration(&o) }) {
			return field.ErrorList{field.Forbidden(p, "existing toleration can not be modified except its tolerationSeconds; tolerations can be added")}
		}
	}
	return nil
}

// maxChanged bounds how many changed fields an answer names.
const maxChanged = 10

// changed gives the paths at which two specifications differ, by their JSON.
func changed(a, b *v1.PodSpec) []string {
	var x, y any
	for _, s := range []struct {
		spec *v1.PodSpec
		into *any
	}{{a, &x}, {b, &y}} {
		raw, err := json.Marshal(s.spec)
		if err != nil || json.Unmarshal(raw, s.into) != nil {
			return []string{""}
		}
	}
	var found []string
	diff(x, y, "", &found)
	if len(found) == 0 {
		return []string{""}
	}
	return found
}

func diff(a, b any, path string, found *[]string) {
	if len(*found) >= maxChanged || reflect.DeepEqual(a, b) {
		return
	}
	if x, ok := a.(map[string]any); ok {
		if y, ok := b.(map[string]any); ok {
			diffMaps(x, y, path, found)
			return
		}
	}
	if x, ok := a.([]any); ok {
		if y, ok := b.([]any); ok && len(x) == len(y) {
			for i := range x {
				diff(x[i], y[i], fmt.Sprintf("%s[%d]", path, i), found)
			}
			return
		}
	}
	*found = append(*found, path)
}

func diffMaps(x, y map[string]any, path string, found *[]string) {
	keys := make([]string, 0, len(x))
	for k := range x {
		keys = append(keys, k)
	}
	for k := range y {
		if _, both := x[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		at := path + "." + k
		if strings.ContainsAny(k, "./") {
			at = path + "[" + k + "]"
		}
		diff(x[k], y[k], at, found)
	}
}
