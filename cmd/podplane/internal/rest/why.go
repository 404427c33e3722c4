package rest

import "time"

// Why is what happened to a pod and why, as /podplane/v1/why answers it.
type Why struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	UID         string       `json:"uid"`
	Phase       string       `json:"phase"`
	Chains      []WhyChain   `json:"chains"`
	Waiting     []WhyWaiting `json:"waiting"`
	LeftOut     int          `json:"leftOut"`
	EarlierUIDs []string     `json:"earlierUids"`
	Missing     []string     `json:"missing"`
	TraceID     string       `json:"traceId"`
}

// WhyChain is one happening with what followed from it.
type WhyChain struct {
	At        time.Time `json:"at"`
	Container string    `json:"container"`
	TraceID   string    `json:"traceId"`
	Steps     []WhyStep `json:"steps"`
}

// WhyStep is an event, a decision, an action or a report.
type WhyStep struct {
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Text    string    `json:"text"`
	TraceID string    `json:"traceId"`
	Source  string    `json:"source"`
}

// WhyWaiting is what a pod waits for.
type WhyWaiting struct {
	Step     string    `json:"step"`
	Resource string    `json:"resource"`
	Message  string    `json:"message"`
	Since    time.Time `json:"since"`
}
