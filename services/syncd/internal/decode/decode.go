// Package decode reads Kubernetes objects from JSON and YAML strictly: a field that is unknown, that is given twice or that has a value of
// the wrong type is refused with its path, and so is an object of another kind. It keeps no state and does no I/O.
//
// Errors are of kind TooLarge (over MaxBytes), BadRequest (it can't be parsed; the message has the line) or Invalid (with the fields).
// Their messages never repeat values.
package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/podplane/podplane/internal/fault"
)

// MaxBytes is the largest body that is read, as in Kubernetes' API.
const MaxBytes = 3 << 20

// Input is what is to be decoded.
type Input struct {
	Data []byte
	// ContentType is a media type. Empty and the types that say nothing (text/plain, application/octet-stream, and what curl sends by
	// default) leave it to the content: what begins with a brace is JSON.
	ContentType string
	// Limit is the largest size in bytes; 0 is MaxBytes.
	Limit int
	// RequireKind refuses objects that do not say their kind and apiVersion.
	RequireKind bool
}

// Pod reads a v1.Pod.
func Pod(in Input) (*v1.Pod, error) {
	pod := new(v1.Pod)
	return pod, object(in, pod, "Pod", "v1")
}

// ConfigMap reads a v1.ConfigMap.
func ConfigMap(in Input) (*v1.ConfigMap, error) {
	m := new(v1.ConfigMap)
	return m, object(in, m, "ConfigMap", "v1")
}

// Secret reads a v1.Secret.
func Secret(in Input) (*v1.Secret, error) {
	s := new(v1.Secret)
	return s, object(in, s, "Secret", "v1")
}

// DeleteOptions reads a v1.DeleteOptions; empty input is an empty one.
func DeleteOptions(in Input) (*metav1.DeleteOptions, error) {
	o := new(metav1.DeleteOptions)
	if len(bytes.TrimSpace(in.Data)) == 0 {
		return o, nil
	}
	return o, object(in, o, "DeleteOptions", "v1", "meta.k8s.io/v1")
}

// Canonical gives the input's meaning as JSON with sorted keys: the same for texts that differ only in their form, whatever the types of
// this build know.
func Canonical(in Input) ([]byte, error) {
	data, _, err := toJSON(in)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fault.New(fault.BadRequest, "the body can't be read: %w", err)
	}
	canonical, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return canonical, nil
}

func object(in Input, into any, kind string, versions ...string) error {
	limit := in.Limit
	if limit <= 0 {
		limit = MaxBytes
	}
	if len(in.Data) > limit {
		return fault.New(fault.TooLarge, "the body has %d bytes, at most %d are read", len(in.Data), limit)
	}
	data, tree, err := toJSON(in)
	if err != nil {
		return err
	}
	var typed metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &typed); err != nil {
		return whyNot(data, reflect.TypeOf(into).Elem(), kind, tree, err)
	}
	if err := checkType(typed, in.RequireKind, kind, versions); err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		return whyNot(data, reflect.TypeOf(into).Elem(), kind, tree, err)
	}
	list := strictErrors(strict, reflect.TypeOf(into).Elem(), tree)
	list = append(list, tree.duplicates()...)
	return fault.Invalidate(fault.Object{Resource: kind, Name: nameOf(into)}, list)
}

func nameOf(o any) string {
	if m, ok := o.(metav1.Object); ok {
		if m.GetName() != "" {
			return m.GetName()
		}
		return m.GetGenerateName()
	}
	return ""
}

func checkType(t metav1.TypeMeta, required bool, kind string, versions []string) error {
	var list field.ErrorList
	known := func(path, value string, allowed []string) {
		if value == "" {
			if required {
				list = append(list, field.Required(field.NewPath(path), fmt.Sprintf("must be %q", allowed[0])))
			}
			return
		}
		for _, a := range allowed {
			if a == value {
				return
			}
		}
		list = append(list, field.NotSupported(field.NewPath(path), value, allowed))
	}
	known("kind", t.Kind, []string{kind})
	known("apiVersion", t.APIVersion, versions)
	return fault.Invalidate(fault.Object{Resource: kind}, list)
}

// toJSON gives the input as JSON, and for YAML the tree that knows lines.
func toJSON(in Input) ([]byte, *tree, error) {
	asJSON, err := isJSON(in)
	if err != nil {
		return nil, nil, err
	}
	if !asJSON {
		return fromYAML(in.Data)
	}
	if !json.Valid(in.Data) {
		return nil, nil, syntaxError(in.Data)
	}
	if first := firstByte(in.Data); first != '{' {
		return nil, nil, fault.New(fault.BadRequest, "the body is not a JSON object")
	}
	return in.Data, nil, nil
}

func firstByte(data []byte) byte {
	data = bytes.TrimLeft(data, " \t\r\n\ufeff")
	if len(data) == 0 {
		return 0
	}
	return data[0]
}

func isJSON(in Input) (bool, error) {
	if len(bytes.TrimSpace(in.Data)) == 0 {
		return false, fault.New(fault.BadRequest, "the body is empty")
	}
	media := ""
	if in.ContentType != "" {
		m, _, err := mime.ParseMediaType(in.ContentType)
		if err != nil {
			return false, fault.New(fault.BadRequest, "the content type can't be read: %w", err)
		}
		media = m
	}
	switch media {
	case "application/json":
		return true, nil
	case "application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml":
		return false, nil
	case "", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded", "*/*":
		return firstByte(in.Data) == '{', nil
	}
	return false, fault.New(fault.BadRequest, "content type %q is not supported: supported are application/json and application/yaml", media)
}

// syntaxError says where a body stops being JSON.
func syntaxError(data []byte) error {
	var any json.RawMessage
	err := json.Unmarshal(data, &any)
	if ok, offset := kjson.SyntaxErrorOffset(err); ok {
		line, column := position(data, int(offset))
		return fault.New(fault.BadRequest, "the body is not JSON: %w", &SyntaxError{line, fmt.Sprintf("line %d, column %d: %v", line, column, err)})
	}
	return fault.New(fault.BadRequest, "the body is not JSON: %w", err)
}

func position(data []byte, offset int) (line, column int) {
	before := data[:min(max(offset-1, 0), len(data))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
