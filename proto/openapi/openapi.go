// Package openapi holds the OpenAPI v2 document of Podplane's REST API, generated from the protos beside it.
package openapi

import _ "embed"

// Document is the document as JSON.
//
//go:embed podplane.swagger.json
var Document []byte
