// Package rawjson changes single members of JSON objects and leaves what it does not know as it is, so that fields written by a newer
// version survive. It keeps no state.
package rawjson

import (
	"encoding/json"
	"fmt"
)

// Object is a JSON object whose members stay undecoded.
type Object map[string]json.RawMessage

// Parse reads an object; empty input and null are the empty object.
func Parse(data []byte) (Object, error) {
	o := Object{}
	if len(data) == 0 {
		return o, nil
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, fmt.Errorf("read a JSON object: %w", err)
	}
	if o == nil {
		o = Object{}
	}
	return o, nil
}

// Set gives a member a value.
func (o Object) Set(member string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write member %q: %w", member, err)
	}
	o[member] = raw
	return nil
}

// Change reads the member as an object, lets f change that, and puts it back.
func (o Object) Change(member string, f func(Object) error) error {
	inner, err := Parse(o[member])
	if err != nil {
		return fmt.Errorf("member %q: %w", member, err)
	}
	if err := f(inner); err != nil {
		return err
	}
	return o.Set(member, inner)
}

// Bytes gives the object as JSON, its members in alphabetical order.
func (o Object) Bytes() ([]byte, error) { return json.Marshal(o) }

// WithVersion puts metadata.resourceVersion into a Kubernetes object.
func WithVersion(object []byte, version string) ([]byte, error) {
	o, err := Parse(object)
	if err != nil {
		return nil, err
	}
	err = o.Change("metadata", func(m Object) error { return m.Set("resourceVersion", version) })
	if err != nil {
		return nil, err
	}
	return o.Bytes()
}
