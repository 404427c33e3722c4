package decode_test

import (
	"strings"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/decode"
)

func TestPods(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want []string // place namespace/name
		err  string
	}{
		"a Pod":                 {data: `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`, want: []string{" /a"}},
		"a Pod as YAML":         {data: "kind: Pod\napiVersion: v1\nmetadata: {name: a, namespace: ns}\n", want: []string{" ns/a"}},
		"an empty list":         {data: `{"kind":"PodList","apiVersion":"v1","items":[]}`},
		"no items":              {data: `{"kind":"PodList","apiVersion":"v1"}`},
		"as kubectl prints":     {data: "kind: List\napiVersion: v1\nitems:\n- metadata: {name: a}\n- metadata: {name: b, namespace: ns}\n", want: []string{"items[0] /a", "items[1] ns/b"}},
		"without names":         {data: `{"kind":"PodList","apiVersion":"v1","items":[{},{"metadata":{"name":5}},null]}`, want: []string{"items[0] /", "items[1] /", "items[2] /"}},
		"another kind":          {data: `{"kind":"Service","apiVersion":"v1"}`, err: "kind: Unsupported value"},
		"another version":       {data: `{"kind":"PodList","apiVersion":"v2"}`, err: "apiVersion: Unsupported value"},
		"items of a wrong type": {data: `{"kind":"PodList","apiVersion":"v1","items":{}}`, err: "neither a Pod nor a list of Pods"},
		"nothing":               {data: "", err: "empty"},
		"too much":              {data: `{"kind":"PodList","apiVersion":"v1","items":[` + strings.Repeat("{},", decode.MaxItems) + `{}]}`, err: "the list has 1101 items, at most 1100"},
	} {
		t.Run(name, func(t *testing.T) {
			items, err := decode.Pods(decode.Input{Data: []byte(c.data)})
			if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			var got []string
			for _, i := range items {
				got = append(got, i.Place+" "+i.Namespace+"/"+i.Name)
			}
			if strings.Join(got, ",") != strings.Join(c.want, ",") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// FuzzPods looks for answers that crash, and for items that another decoder would not see.
func FuzzPods(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}`))
	f.Add([]byte("kind: List\napiVersion: v1\nitems: [{}, x]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		items, err := decode.Pods(decode.Input{Data: data})
		if err != nil && len(items) > 0 {
			t.Fatal("items and an error")
		}
		if len(items) > decode.MaxItems {
			t.Fatalf("%d items", len(items))
		}
		for _, i := range items {
			if pod, err := decode.Pod(decode.Input{Data: i.Data}); err == nil && (pod.Name != i.Name || pod.Namespace != i.Namespace) {
				t.Fatalf("got the name %s/%s, decoded it is %s/%s", i.Namespace, i.Name, pod.Namespace, pod.Name)
			}
		}
	})
}
