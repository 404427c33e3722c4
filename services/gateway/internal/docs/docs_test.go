package docs_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/podplane/podplane/services/gateway/internal/docs"
)

type schema struct {
	Ref        string `json:"$ref"`
	Type       string
	Properties map[string]schema
	Items      *schema
}

type document struct {
	Info  struct{ Title, Version string }
	Paths map[string]map[string]struct {
		Responses  map[string]struct{ Schema schema }
		Parameters []struct {
			Name, In string
			Schema   schema
		}
		Produces, Consumes []string
	}
	Definitions map[string]schema
}

func read(t *testing.T) (document, string) {
	t.Helper()
	raw, err := docs.Document("v9")
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d, string(raw)
}

func TestDocumentSaysWhatTravels(t *testing.T) {
	d, raw := read(t)
	if d.Info.Title != "Podplane REST API" || d.Info.Version != "v9" {
		t.Errorf("info %+v", d.Info)
	}
	for _, gone := range []string{"HttpBody", "rpcStatus", "protobufAny", "Stream result"} {
		if strings.Contains(raw, gone) {
			t.Errorf("the document still says %s", gone)
		}
	}
	pods := d.Paths["/api/v1/namespaces/{namespace}/pods"]
	if got := pods["post"].Responses["201"].Schema.Ref; got != "#/definitions/v1.Pod" {
		t.Errorf("a new pod is answered with %q", got)
	}
	if _, ok := pods["post"].Responses["200"]; ok {
		t.Error("a new pod is not answered with 200")
	}
	if got := pods["get"].Responses["200"].Schema.Ref; got != "#/definitions/v1.PodList" {
		t.Errorf("a list is answered with %q", got)
	}
	for _, p := range pods["delete"].Parameters {
		if p.In == "body" && p.Schema.Ref != "#/definitions/v1.DeleteOptions" {
			t.Errorf("a deletion takes %q", p.Schema.Ref)
		}
	}
	log := d.Paths["/api/v1/namespaces/{namespace}/pods/{name}/log"]["get"]
	if log.Responses["200"].Schema.Type != "string" || log.Produces[0] != "text/plain" {
		t.Errorf("a log is %+v", log)
	}
	if got := d.Paths["/podplane/v1/lifecycle"]["get"].Responses["200"].Schema.Ref; got != "#/definitions/v1ListLifecycleResponse" {
		t.Errorf("the journal is answered with %q", got)
	}
	if d.Definitions["v1.Status"].Properties["details"].Properties["causes"].Items == nil {
		t.Errorf("Status is %+v", d.Definitions["v1.Status"])
	}
}

func TestEveryReferenceLeadsSomewhere(t *testing.T) {
	d, raw := read(t)
	parts := strings.Split(raw, `"#/definitions/`)
	if len(parts) < 20 {
		t.Fatalf("only %d references", len(parts))
	}
	for _, part := range parts[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if _, ok := d.Definitions[name]; !ok {
			t.Errorf("%s is not defined", name)
		}
	}
	for path, verbs := range d.Paths {
		for verb, op := range verbs {
			if op.Responses["default"].Schema.Ref != "#/definitions/v1.Status" {
				t.Errorf("%s %s fails with %+v", verb, path, op.Responses["default"])
			}
		}
	}
}
