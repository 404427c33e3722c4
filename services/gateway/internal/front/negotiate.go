package front

import (
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
)

// bodyTypes maps the media types that a body may have to the one that it is handed on as.
var bodyTypes = map[string]string{
	jsonType: jsonType, yamlType: yamlType, "application/x-yaml": yamlType, "text/yaml": yamlType, "text/x-yaml": yamlType,
}

// negotiate refuses bodies and answers in media types that nobody here knows, and an empty body where an object belongs.
func negotiate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !acceptable(r) {
			writeStatus(w, routingStatus(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
				"only application/json can be answered here (text/plain for logs); the Accept header allows neither"))
			return
		}
		r.Header.Del("Accept")
		needsBody := r.Method == http.MethodPost || r.Method == http.MethodPut
		if needsBody && r.ContentLength == 0 {
			writeStatus(w, fault.ToStatus(fault.New(fault.BadRequest, "the body is empty: send the object as application/json or application/yaml")))
			return
		}
		if r.ContentLength > 0 {
			given := r.Header.Get("Content-Type")
			known, ok := bodyType(given)
			if !ok {
				writeStatus(w, routingStatus(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
					fmt.Sprintf("the body has the media type %q, must be application/json or application/yaml", given)))
				return
			}
			r.Header.Set("Content-Type", known)
		}
		next.ServeHTTP(w, r)
	})
}

// bodyType gives the media type that a body is handed on as. As in Kubernetes a body without a type is JSON.
func bodyType(header string) (string, bool) {
	if header == "" {
		return jsonType, true
	}
	given, _, err := mime.ParseMediaType(header)
	if err != nil {
		return "", false
	}
	known, ok := bodyTypes[given]
	return known, ok
}

// isLog says whether a container's log is asked for.
func isLog(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/log") }

// acceptable says whether JSON, or for a log plain text, is among what the client takes. kubectl asks for tables first and takes JSON too.
func acceptable(r *http.Request) bool {
	header := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(header) == "" {
		return true
	}
	for item := range strings.SplitSeq(header, ",") {
		given, params, err := mime.ParseMediaType(strings.TrimSpace(item))
		if err != nil || params["as"] != "" || zero(params["q"]) {
			continue
		}
		switch given {
		case "*/*", "application/*", jsonType:
			return true
		case "text/*", "text/plain":
			if isLog(r) {
				return true
			}
		}
	}
	return false
}

func zero(q string) bool {
	if q == "" {
		return false
	}
	v, err := strconv.ParseFloat(q, 64)
	return err == nil && v <= 0
}
