package decode_test

import (
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/decode"
)

const goodYAML = `# a comment
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app.kubernetes.io/name: web}
spec:
  containers:
  - name: web
    image: nginx:1
    resources:
      limits: {cpu: 1, memory: 64Mi}
    ports:
    - containerPort: 80
---
`

func TestPod(t *testing.T) {
	for _, in := range []decode.Input{
		{Data: []byte(goodYAML), ContentType: "application/yaml"},
		{Data: []byte(goodYAML), RequireKind: true},
		{Data: []byte(`{"metadata":{"name":"web"},"spec":{"containers":[{"name":"web","image":"nginx:1"}]}}`), ContentType: "application/json; charset=utf-8"},
		{Data: []byte(" \n{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"web\"},\"spec\":{\"containers\":[{\"name\":\"web\",\"image\":\"nginx:1\"}]}}"), ContentType: "application/x-www-form-urlencoded"},
	} {
		pod, err := decode.Pod(in)
		if err != nil {
			t.Errorf("%s: %v", in.Data, err)
			continue
		}
		if pod.Name != "web" || len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Image != "nginx:1" {
			t.Errorf("%s: got %+v", in.Data, pod)
		}
	}
}

func TestRefused(t *testing.T) {
	yaml := func(lines ...string) decode.Input {
		return decode.Input{Data: []byte("apiVersion: v1\nkind: Pod\n" + strings.Join(lines, "\n")), ContentType: "application/yaml"}
	}
	js := func(s string) decode.Input { return decode.Input{Data: []byte(s), ContentType: "application/json"} }
	for _, c := range []struct {
		name  string
		in    decode.Input
		kind  fault.Kind
		field string
		words string
	}{
		{"unknown field yaml", yaml("spec:", "  containers:", "  - name: a", "    imagee: x"), fault.Invalid, "spec.containers[0].imagee", `did you mean "image"? (line 6)`},
		{"unknown field json", js(`{"spec":{"containers":[{"nam":"a"}]}}`), fault.Invalid, "spec.containers[0].nam", `did you mean "name"?`},
		{"unknown field, known ones listed", js(`{"spec":{"containers":[{"ports":[{"exposed":1}]}]}}`), fault.Invalid, "spec.containers[0].ports[0].exposed", "known here: containerPort, hostIP, hostPort, name, protocol"},
		{"wrong case", js(`{"spec":{"restartpolicy":"Never"}}`), fault.Invalid, "spec.restartpolicy", `did you mean "restartPolicy"?`},
		{"duplicate field json", js(`{"spec":{"nodeName":"a","nodeName":"b"}}`), fault.Invalid, "spec.nodeName", "duplicate field"},
		{"duplicate field yaml", yaml("spec:", "  nodeName: a", "  nodeName: b"), fault.Invalid, "spec.nodeName", "line 4 and line 5"},
		{"duplicate key of a map", yaml("metadata:", "  labels:", "    a.b/c: one", "    a.b/c: two"), fault.Invalid, "metadata.labels.a.b/c", "line 5 and line 6"},
		{"quantity", yaml("spec:", "  containers:", "  - name: a", "  - name: b", "    resources:", "      limits: {memory: lots}"), fault.Invalid, "spec.containers[1].resources.limits[memory]", "must be a quantity"},
		{"string", yaml("spec:", "  containers:", "  - name: a", "    env:", "    - {name: A, value: 1}"), fault.Invalid, "spec.containers[0].env[0].value", "must be a string (quote it) (line 7)"},
		{"number", js(`{"spec":{"terminationGracePeriodSeconds":"5"}}`), fault.Invalid, "spec.terminationGracePeriodSeconds", "must be a number"},
		{"fraction", js(`{"spec":{"terminationGracePeriodSeconds":5.5}}`), fault.Invalid, "spec.terminationGracePeriodSeconds", "must be an integer"},
		{"list", js(`{"spec":{"containers":{"name":"a"}}}`), fault.Invalid, "spec.containers", "must be a list"},
		{"bool", js(`{"spec":{"hostNetwork":"yes"}}`), fault.Invalid, "spec.hostNetwork", "must be true or false"},
		{"object", js(`{"spec":[]}`), fault.Invalid, "spec", "must be an object"},
		{"time", js(`{"metadata":{"creationTimestamp":"now"}}`), fault.Invalid, "metadata.creationTimestamp", "RFC 3339"},
		{"kind", js(`{"kind":"List","apiVersion":"v1","items":[]}`), fault.Invalid, "kind", `"List": supported values: "Pod"`},
		{"kind of a wrong type", js(`{"kind":5}`), fault.Invalid, "kind", "must be a string"},
		{"version", js(`{"kind":"Pod","apiVersion":"v2"}`), fault.Invalid, "apiVersion", `supported values: "v1"`},
		{"no kind in a file", decode.Input{Data: []byte("apiVersion: v1\nmetadata: {name: a}"), RequireKind: true}, fault.Invalid, "kind", `must be "Pod"`},
		{"json syntax", js("{\n\"spec\": {,}}"), fault.BadRequest, "", "line 2, column 10"},
		{"yaml syntax", yaml("spec:", "  a: [", "b: }"), fault.BadRequest, "", "line "},
		{"yaml syntax in a later document", decode.Input{Data: []byte("# x\n---\n# y\n---\na: b\nc: 'd\n")}, fault.BadRequest, "", "line 6"},
		{"two objects", decode.Input{Data: []byte(goodYAML + goodYAML)}, fault.BadRequest, "", "second object at line"},
		{"none", decode.Input{Data: []byte("# nothing\n---\n")}, fault.BadRequest, "", "no object"},
		{"a list of objects", decode.Input{Data: []byte("- a\n- b\n")}, fault.BadRequest, "", "not an object"},
		{"json array", js("[1]"), fault.BadRequest, "", "not a JSON object"},
		{"empty", decode.Input{}, fault.BadRequest, "", "empty"},
		{"media type", decode.Input{Data: []byte("x"), ContentType: "application/vnd.kubernetes.protobuf"}, fault.BadRequest, "", "supported are application/json and application/yaml"},
		{"too large", decode.Input{Data: make([]byte, decode.MaxBytes+1)}, fault.TooLarge, "", "at most"},
		{"alias bomb", yaml("metadata:", "  annotations:", "    a: &a [x,x,x,x,x,x,x,x,x]", "    b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]", "    c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]",
			"    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]", "    e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]", "    f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]", "    g: [*f,*f,*f,*f,*f,*f,*f,*f,*f]"), fault.BadRequest, "", "alias"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := decode.Pod(c.in)
			if !fault.Is(err, c.kind) {
				t.Fatalf("got %v: %v, want %v", fault.KindOf(err), err, c.kind)
			}
			if !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %q, want %q in it", err, c.words)
			}
			if c.field == "" {
				return
			}
			fields := fault.Fields(err)
			if len(fields) != 1 || fields[0].Path != c.field {
				t.Errorf("got fields %+v, want %s", fields, c.field)
			}
		})
	}
}

func TestValuesAreNotRepeated(t *testing.T) {
	_, err := decode.Secret(decode.Input{Data: []byte("kind: Secret\ndata:\n  password: hunter2!\nstringData: [hunter2!]\n")})
	if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	if f := fault.Fields(err); len(f) != 2 || f[0].Path != "data[password]" || f[1].Path != "stringData" {
		t.Errorf("got %+v", f)
	}
}

func TestLine(t *testing.T) {
	for path, want := range map[string]int{
		"metadata.labels[app.kubernetes.io/name]": 7, "spec.containers[0].image": 11, "spec.containers[0].ports[0].containerPort": 15,
		"spec.containers[0].ports[0].hostPort": 15, "spec.nodeName": 8, "nothing": 3,
	} {
		if got := decode.Line([]byte(goodYAML), path); got != want {
			t.Errorf("%s: got line %d, want %d", path, got, want)
		}
	}
}

func TestDeleteOptions(t *testing.T) {
	o, err := decode.DeleteOptions(decode.Input{Data: []byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":7}`)})
	if err != nil || o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 7 {
		t.Errorf("got %+v, %v", o, err)
	}
	if o, err = decode.DeleteOptions(decode.Input{}); err != nil || o.GracePeriodSeconds != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

// FuzzPod looks for input that is taken although it is not one pod, or that takes the decoder down.
func FuzzPod(f *testing.F) {
	f.Add([]byte(goodYAML), "application/yaml")
	f.Add([]byte(`{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a","image":"b"}]}}`), "application/json")
	f.Add([]byte("a: &a [*a]\n---\n- {x: y}\n"), "")
	f.Add([]byte("{\"spec\":{\"containers\":[{\"resources\":{\"limits\":{\"cpu\":\"x\"}}}]}}"), "")
	f.Add([]byte("? [a]\n: b\n!!binary x: {<<: *y}\n"), "text/yaml")
	f.Fuzz(func(t *testing.T, data []byte, contentType string) {
		pod, err := decode.Pod(decode.Input{Data: data, ContentType: contentType})
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.BadRequest && k != fault.TooLarge {
				t.Fatalf("an error of kind %v: %v", k, err)
			}
			return
		}
		if pod.Kind != "" && pod.Kind != "Pod" {
			t.Fatalf("took a %s", pod.Kind)
		}
		for _, fe := range fault.Fields(err) {
			decode.Line(data, fe.Path)
		}
	})
}
