// Package docs serves the OpenAPI document and two pages for people: an index and a reader of the document. The pages are our own and
// fetch nothing from another host; their content security policy holds them to that.
package docs

import (
	"embed"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"

	"github.com/podplane/podplane/proto/openapi"
)

// policy allows the pages their own script, style and the document, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed assets
var assets embed.FS

var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

// Mount adds the pages' routes.
func Mount(r chi.Router) {
	r.Get("/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		write(w, "application/json", openapi.Document)
	})
	for route, file := range map[string]string{
		"/": "index.html", "/docs": "docs.html", "/docs/docs.js": "docs.js", "/docs/docs.css": "docs.css",
	} {
		body, err := assets.ReadFile(path.Join("assets", file))
		if err != nil {
			panic(err) // it is embedded: the first test finds it
		}
		r.Get(route, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", policy)
			write(w, types[path.Ext(file)], body)
		})
	}
}

func write(w http.ResponseWriter, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(body) // a client that is gone needs no answer
}
