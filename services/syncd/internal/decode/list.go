package decode

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/podplane/podplane/internal/fault"
)

// Item is one object of what may be a list.
type Item struct {
	// Place says where it stands, as in items[2]; empty when it stands alone.
	Place string
	// Name is the object's metadata.namespace/name as far as it can be read; empty without a name.
	Namespace, Name string
	// Data is to be decoded by itself.
	Data []byte
}

// MaxItems bounds a list: ten times what a node takes.
const MaxItems = 1100

// Pods takes one v1.Pod, or a list of them (kind PodList, or List as kubectl prints it), apart. The items are not decoded yet, so that a bad one does
// not spoil the others.
func Pods(in Input) ([]Item, error) {
	if limit := in.Limit; limit > 0 && len(in.Data) > limit {
		return nil, fault.New(fault.TooLarge, "the body has %d bytes, at most %d are read", len(in.Data), limit)
	}
	data, _, err := toJSON(in)
	if err != nil {
		return nil, err
	}
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &list); err != nil {
		return nil, fault.New(fault.BadRequest, "the body is neither a Pod nor a list of Pods: %w", err)
	}
	switch {
	case list.Kind == "Pod":
		item := Item{Data: in.Data}
		item.Namespace, item.Name = named(data)
		return []Item{item}, nil
	case list.Kind != "PodList" && list.Kind != "List":
		return nil, fault.Invalidate(fault.Object{Resource: "PodList"}, field.ErrorList{field.NotSupported(field.NewPath("kind"), list.Kind, []string{"Pod", "PodList", "List"})})
	case list.APIVersion != "v1":
		return nil, fault.Invalidate(fault.Object{Resource: "PodList"}, field.ErrorList{field.NotSupported(field.NewPath("apiVersion"), list.APIVersion, []string{"v1"})})
	case len(list.Items) > MaxItems:
		return nil, fault.New(fault.TooLarge, "the list has %d items, at most %d are read", len(list.Items), MaxItems)
	}
	items := make([]Item, len(list.Items))
	for i, raw := range list.Items {
		items[i] = Item{Place: fmt.Sprintf("items[%d]", i), Data: raw}
		items[i].Namespace, items[i].Name = named(raw)
	}
	return items, nil
}

// named reads an object's name as far as possible.
func named(data []byte) (namespace, name string) {
	var o struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(data, &o) != nil {
		return "", ""
	}
	return o.Metadata.Namespace, o.Metadata.Name
}
