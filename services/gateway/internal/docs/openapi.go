package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/podplane/podplane/proto/openapi"
)

// The generator knows the protos only. Over REST, bodies are Kubernetes objects and not messages that hold them, errors are Status objects,
// a new object is answered with 201, and the messages of a stream come bare. Document says it as it is.

const (
	bodyRef   = "#/definitions/apiHttpBody"
	errorRef  = "#/definitions/rpcStatus"
	statusRef = "#/definitions/v1.Status"
)

var kubernetesKind = regexp.MustCompile(`\bv1\.[A-Z][A-Za-z]+`)

type object = map[string]any

// Document gives the OpenAPI document of the REST API.
func Document(version string) ([]byte, error) {
	var doc object
	if err := json.Unmarshal(openapi.Document, &doc); err != nil {
		return nil, fmt.Errorf("read the generated OpenAPI document: %w", err)
	}
	doc["info"] = object{
		"title": "Podplane REST API", "version": version,
		"description": "Kubernetes' paths for pods, ConfigMaps, Secrets, Events and nodes, and Podplane's own concerns under /podplane/v1.",
	}
	definitions := member(doc, "definitions")
	for _, name := range []string{"apiHttpBody", "protobufAny", "rpcStatus"} {
		delete(definitions, name)
	}
	definitions["v1.Status"] = status()
	for _, verbs := range members(doc, "paths") {
		for verb, op := range verbs {
			if o, ok := op.(object); ok {
				amend(verb, o, definitions)
			}
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("write the OpenAPI document: %w", err)
	}
	return out, nil
}

// amend makes one operation say what really travels.
func amend(verb string, op, definitions object) {
	summary, _ := op["summary"].(string)
	kinds := kubernetesKind.FindAllString(summary, -1)
	parameters, _ := op["parameters"].([]any)
	for _, p := range parameters {
		parameter, ok := p.(object)
		if !ok || parameter["in"] != "body" {
			continue
		}
		kind := "v1.DeleteOptions"
		if verb != "delete" && len(kinds) > 0 {
			kind = kinds[0]
		}
		parameter["schema"] = kubernetes(kind, definitions)
		parameter["required"] = verb != "delete"
		op["consumes"] = []string{"application/json", "application/yaml"}
	}
	responses := member(op, "responses")
	if failed := member(responses, "default"); failed != nil {
		failed["description"], failed["schema"] = "An error; its code is the answer's.", object{"$ref": statusRef}
	}
	done := member(responses, "200")
	if done == nil {
		return
	}
	done["description"] = "Success."
	schema := member(done, "schema")
	result := member(member(schema, "properties"), "result")
	isBody := schema["$ref"] == bodyRef || schema["format"] == "binary"
	switch {
	case isBody && len(kinds) > 0:
		done["schema"] = kubernetes(kinds[len(kinds)-1], definitions)
	case isBody:
		done["schema"] = object{"type": "string"}
		op["produces"] = []string{"text/plain"}
	case result != nil:
		done["schema"], done["description"] = result, "Success; one object to a line."
	}
	if verb == "post" {
		responses["201"] = done
		delete(responses, "200")
	}
}

// kubernetes gives a reference to a Kubernetes object, whose fields Kubernetes describes.
func kubernetes(kind string, definitions object) object {
	if _, ok := definitions[kind]; !ok {
		definitions[kind] = object{"type": "object", "description": "Kubernetes' " + strings.TrimPrefix(kind, "v1.") + " of version v1, as in its API reference."}
	}
	return object{"$ref": "#/definitions/" + kind}
}

func status() object {
	text, number := object{"type": "string"}, object{"type": "integer", "format": "int32"}
	cause := object{"type": "object", "properties": object{
		"field":   object{"type": "string", "description": "The field's path, such as spec.containers[0].image."},
		"reason":  object{"type": "string", "description": "What is wrong with it, such as FieldValueRequired."},
		"message": object{"type": "string", "description": "What is wrong and what is allowed."},
	}}
	return object{"type": "object", "description": "Kubernetes' Status: why a request failed.", "properties": object{
		"kind": text, "apiVersion": text, "status": object{"type": "string", "description": "Failure."},
		"message": object{"type": "string", "description": "What went wrong, for people."},
		"reason":  object{"type": "string", "description": "The same in one word, for programs: NotFound, AlreadyExists, Invalid…"},
		"code":    object{"type": "integer", "format": "int32", "description": "The HTTP code."},
		"details": object{"type": "object", "properties": object{
			"name": text, "kind": text, "uid": text, "retryAfterSeconds": number, "causes": object{"type": "array", "items": cause},
		}},
	}}
}

func member(o object, key string) object {
	m, _ := o[key].(object)
	return m
}

// members gives the objects in a member of o, in a fixed order.
func members(o object, key string) []object {
	m := member(o, key)
	var out []object
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if v, ok := m[k].(object); ok {
			out = append(out, v)
		}
	}
	return out
}
