package fault

import (
	"math"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StatusClientClosedRequest is the code of an answer that nobody reads: the client went away.
const StatusClientClosedRequest = 499

type httpMeaning struct {
	code   int32
	reason metav1.StatusReason
}

var httpOf = [kindCount]httpMeaning{
	Invalid:            {http.StatusUnprocessableEntity, metav1.StatusReasonInvalid},
	BadRequest:         {http.StatusBadRequest, metav1.StatusReasonBadRequest},
	NotFound:           {http.StatusNotFound, metav1.StatusReasonNotFound},
	AlreadyExists:      {http.StatusConflict, metav1.StatusReasonAlreadyExists},
	Conflict:           {http.StatusConflict, metav1.StatusReasonConflict},
	Expired:            {http.StatusGone, metav1.StatusReasonExpired},
	TooLarge:           {http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge},
	Unavailable:        {http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	DeadlineExceeded:   {http.StatusGatewayTimeout, metav1.StatusReasonTimeout},
	ResourceExhausted:  {http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
	PermissionDenied:   {http.StatusForbidden, metav1.StatusReasonForbidden},
	Unauthenticated:    {http.StatusUnauthorized, metav1.StatusReasonUnauthorized},
	Unimplemented:      {http.StatusNotImplemented, metav1.StatusReasonUnknown},
	FailedPrecondition: {http.StatusBadRequest, metav1.StatusReasonBadRequest},
	Internal:           {http.StatusInternalServerError, metav1.StatusReasonInternalError},
	Canceled:           {StatusClientClosedRequest, metav1.StatusReasonUnknown},
}

// ToStatus makes the Status object that a REST client gets for err. For nil it is a success.
func ToStatus(err error) metav1.Status {
	typed := metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if err == nil {
		return metav1.Status{TypeMeta: typed, Status: metav1.StatusSuccess, Code: http.StatusOK}
	}
	m := httpOf[KindOf(err)]
	s := metav1.Status{TypeMeta: typed, Status: metav1.StatusFailure, Message: err.Error(), Reason: m.reason, Code: m.code}
	if r := ReasonOf(err); r != "" {
		s.Reason = metav1.StatusReason(r)
	}
	o := ObjectOf(err)
	d := metav1.StatusDetails{Name: o.Name, Group: o.Group, Kind: o.Resource, UID: types.UID(o.UID), RetryAfterSeconds: wholeSeconds(RetryAfter(err))}
	for _, f := range Fields(err) {
		d.Causes = append(d.Causes, metav1.StatusCause{Type: metav1.CauseType(f.Type), Message: f.Detail, Field: f.Path})
	}
	if d.Name != "" || d.Kind != "" || d.Group != "" || d.UID != "" || d.RetryAfterSeconds != 0 || len(d.Causes) > 0 {
		s.Details = &d
	}
	return s
}

// kindOfStatus goes by the reason and, where that says nothing, by the code.
func kindOfStatus(s metav1.Status) Kind {
	switch s.Reason {
	case metav1.StatusReasonGone:
		return Expired
	case metav1.StatusReasonServerTimeout:
		return Unavailable
	case metav1.StatusReasonUnknown:
	default:
		for k, m := range httpOf {
			if m.reason == s.Reason {
				return Kind(k)
			}
		}
	}
	for k, m := range httpOf {
		if m.code == s.Code && Kind(k) != None {
			return Kind(k)
		}
	}
	return Internal
}

// wholeSeconds rounds up: a client that comes back early would be refused again.
func wholeSeconds(d time.Duration) int32 {
	if d <= 0 {
		return 0
	}
	return int32(min(math.Ceil(d.Seconds()), math.MaxInt32))
}
