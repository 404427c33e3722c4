package registry

import (
	"encoding/json"
	"net"
	"net/http"
	"slices"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// targetGroup is what Prometheus' HTTP service discovery reads.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Targets answers where the replicas' metrics are, as Prometheus' HTTP service discovery asks for it. Replicas take no fixed ports, so
// that their registrations are the one place that knows. Without the bus the last known ones are answered.
func (r *Registry) Targets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer, err := r.ListServices(req.Context(), &podplanev1.ListServicesRequest{Node: req.URL.Query().Get("node")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		body, err := json.Marshal(targets(answer.GetServices()))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // who asked has gone
	})
}

// targets leaves out addresses that others can't reach, unless all are such: then the one who asks is on the same host.
func targets(services []*podplanev1.ServiceRecord) []targetGroup {
	local := func(s *podplanev1.ServiceRecord) bool {
		host, _, err := net.SplitHostPort(s.GetHttpAddress())
		ip := net.ParseIP(host)
		return err != nil || (ip != nil && ip.IsLoopback())
	}
	reachable := slices.ContainsFunc(services, func(s *podplanev1.ServiceRecord) bool { return !local(s) })
	groups := []targetGroup{}
	for _, s := range services {
		if s.GetHttpAddress() == "" || (reachable && local(s)) {
			continue
		}
		groups = append(groups, targetGroup{
			Targets: []string{s.GetHttpAddress()},
			Labels:  map[string]string{"job": s.GetService(), "node": s.GetNode(), "replica": s.GetInstance()},
		})
	}
	return groups
}
