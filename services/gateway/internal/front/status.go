package front

import (
	"encoding/json"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/fault"
)

const (
	jsonType = "application/json"
	textType = "text/plain"
)

// statusOf makes the Status of an error that a service or grpc-gateway itself returned.
func statusOf(err error) metav1.Status { return fault.ToStatus(fault.FromGRPC(err)) }

// routingStatus makes the Status of what is wrong with the HTTP request itself.
func routingStatus(code int, reason metav1.StatusReason, message string) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	}
}

// writeStatus answers with a Status object and its code.
func writeStatus(w http.ResponseWriter, s metav1.Status) {
	body, err := json.Marshal(s)
	if err != nil {
		body = []byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":500}`)
	}
	h := w.Header()
	h.Del("Transfer-Encoding")
	h.Del("Trailer")
	h.Set("Content-Type", jsonType)
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	w.WriteHeader(int(s.Code))
	_, _ = w.Write(append(body, '\n')) // a client that is gone needs no answer
}

// watchError is the last event of a watch that breaks.
func watchError(s metav1.Status) []byte {
	event := struct {
		Type   string        `json:"type"`
		Object metav1.Status `json:"object"`
	}{"ERROR", s}
	out, err := json.Marshal(event)
	if err != nil {
		return nil
	}
	return append(out, '\n')
}
