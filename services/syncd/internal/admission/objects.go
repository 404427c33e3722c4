package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/fault"
)

// maxData bounds the data of a ConfigMap or Secret, as in Kubernetes.
const maxData = 1 << 20

// ConfigMap validates a ConfigMap that is to be stored in a namespace; old is nil for a new one. It changes m.
func ConfigMap(m, old *v1.ConfigMap, namespace string) error {
	var before metav1.Object
	if old != nil {
		before = old
	}
	list := prepareObject(m, before, namespace)
	total := 0
	for _, k := range slices.Sorted(maps.Keys(m.Data)) {
		list = append(list, validateKey(field.NewPath("data").Key(k), k)...)
		total += len(m.Data[k])
		if _, twice := m.BinaryData[k]; twice {
			list = append(list, field.Invalid(field.NewPath("data").Key(k), "", "must not be in data and in binaryData"))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m.BinaryData)) {
		list = append(list, validateKey(field.NewPath("binaryData").Key(k), k)...)
		total += len(m.BinaryData[k])
	}
	if total > maxData {
		list = append(list, field.TooLong(field.NewPath("data"), "", maxData))
	}
	if old != nil && old.Immutable != nil && *old.Immutable {
		list = append(list, frozen(m.Immutable, apiequality.Semantic.DeepEqual(m.Data, old.Data) && apiequality.Semantic.DeepEqual(m.BinaryData, old.BinaryData))...)
	}
	return fault.Invalidate(fault.Object{Resource: "ConfigMap", Name: m.Name}, list)
}

// Secret validates a Secret that is to be stored in a namespace; old is nil for a new one. It changes s: what is in stringData goes into data.
func Secret(s, old *v1.Secret, namespace string) error {
	var before metav1.Object
	if old != nil {
		before = old
	}
	list := prepareObject(s, before, namespace)
	orDefault(&s.Type, v1.SecretTypeOpaque)
	for k, v := range s.StringData {
		if s.Data == nil {
			s.Data = make(map[string][]byte, len(s.StringData))
		}
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
	total := 0
	for _, k := range slices.Sorted(maps.Keys(s.Data)) {
		list = append(list, validateKey(field.NewPath("data").Key(k), k)...)
		total += len(s.Data[k])
	}
	if total > maxData {
		list = append(list, field.TooLong(field.NewPath("data"), "", maxData))
	}
	list = append(list, validateType(s)...)
	if old != nil {
		if s.Type != old.Type {
			list = append(list, field.Invalid(field.NewPath("type"), s.Type, "field is immutable"))
		}
		if old.Immutable != nil && *old.Immutable {
			list = append(list, frozen(s.Immutable, apiequality.Semantic.DeepEqual(s.Data, old.Data))...)
		}
	}
	return fault.Invalidate(fault.Object{Resource: "Secret", Name: s.Name}, list)
}

// prepareObject checks the metadata and clears what only the system sets.
func prepareObject(o, old metav1.Object, namespace string) field.ErrorList {
	var list field.ErrorList
	p := field.NewPath("metadata")
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	if o.GetNamespace() != namespace {
		list = append(list, field.Invalid(p.Child("namespace"), o.GetNamespace(), "must be the namespace of the request, "+quote(namespace)+", or empty"))
	}
	ClearSystemMeta(o)
	if old != nil {
		if o.GetName() != old.GetName() {
			list = append(list, field.Invalid(p.Child("name"), o.GetName(), "must be the name of the request"))
		}
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	}
	if len(o.GetFinalizers()) > 0 {
		list = append(list, notHere(p.Child("finalizers"), "finalizers"))
	}
	return append(list, apivalidation.ValidateObjectMetaAccessor(o, true, apivalidation.NameIsDNSSubdomain, p)...)
}

func validateKey(p *field.Path, key string) field.ErrorList {
	return invalidIf(p, key, validation.IsConfigMapKey(key))
}

// frozen checks an update of an immutable object.
func frozen(immutable *bool, same bool) field.ErrorList {
	var list field.ErrorList
	if immutable == nil || !*immutable {
		list = append(list, field.Forbidden(field.NewPath("immutable"), "field is immutable when `immutable` is set"))
	}
	if !same {
		list = append(list, field.Forbidden(field.NewPath("data"), "field is immutable when `immutable` is set"))
	}
	return list
}

// requiredKeys are what the types of Secrets must have.
var requiredKeys = map[v1.SecretType][]string{
	v1.SecretTypeDockerConfigJson: {v1.DockerConfigJsonKey},
	v1.SecretTypeDockercfg:        {v1.DockerConfigKey},
	v1.SecretTypeSSHAuth:          {v1.SSHAuthPrivateKey},
	v1.SecretTypeTLS:              {v1.TLSCertKey, v1.TLSPrivateKeyKey},
}

func validateType(s *v1.Secret) field.ErrorList {
	var list field.ErrorList
	p := field.NewPath("data")
	for _, k := range requiredKeys[s.Type] {
		value, ok := s.Data[k]
		switch {
		case !ok:
			list = append(list, field.Required(p.Key(k), fmt.Sprintf("a Secret of type %s must have it", s.Type)))
		case (k == v1.DockerConfigJsonKey || k == v1.DockerConfigKey) && !json.Valid(value):
			list = append(list, field.Invalid(p.Key(k), "", "must be JSON, encoded in base64 once"))
		}
	}
	if s.Type == v1.SecretTypeBasicAuth {
		_, user := s.Data[v1.BasicAuthUsernameKey]
		_, password := s.Data[v1.BasicAuthPasswordKey]
		if !user && !password {
			list = append(list, field.Required(p, "a Secret of type kubernetes.io/basic-auth must have username or password"))
		}
	}
	return list
}
