package fault

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func defaultMessage(k Kind, o Object) string {
	what := map[Kind]string{
		NotFound: "not found", AlreadyExists: "already exists", Conflict: "has been changed; read it again and repeat the change",
		Invalid: "is invalid", Expired: "is no longer kept", Unavailable: "is not available now", TooLarge: "is too large",
		PermissionDenied: "is forbidden",
	}[k]
	if what == "" {
		what = k.String()
	}
	return fmt.Sprintf("%s %q %s", o.qualified(), o.Name, what)
}

// qualified is the resource with its group, as in deployments.apps.
func (o Object) qualified() string {
	if o.Group == "" {
		return o.Resource
	}
	return o.Resource + "." + o.Group
}

// splitObject is the inverse of qualified.
func splitObject(qualified, name string) Object {
	resource, group, _ := strings.Cut(qualified, ".")
	return Object{Resource: resource, Group: group, Name: name}
}

func invalidMessage(o Object, fields []FieldError) string {
	parts := make([]string, 0, len(fields))
	for _, f := range fields {
		parts = append(parts, f.String())
	}
	list := strings.Join(parts, ", ")
	if len(parts) > 1 {
		list = "[" + list + "]"
	}
	if o.Resource == "" {
		return list
	}
	return fmt.Sprintf("%s %q is invalid: %s", o.qualified(), o.Name, list)
}

// String reads like Kubernetes' own field errors.
func (f FieldError) String() string {
	if f.Path == "" || f.Path == "<nil>" {
		return f.Detail
	}
	return f.Path + ": " + f.Detail
}

// detailOf is field.Error's body without the value, except where the value is a number, a word of a fixed vocabulary or a name: other
// values may be secret.
func detailOf(e *field.Error) string {
	switch e.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeDuplicate, field.ErrorTypeNotFound:
		return e.ErrorBody()
	case field.ErrorTypeInvalid:
		switch e.BadValue.(type) {
		case int, int32, int64:
			return e.ErrorBody()
		}
	}
	if e.Detail == "" {
		return e.Type.String()
	}
	return e.Type.String() + ": " + e.Detail
}
