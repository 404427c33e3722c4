package store

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/rawjson"
	"github.com/podplane/podplane/services/syncd/internal/watchcache"
)

// What a pod's field selectors can use.
const (
	FieldName          = "metadata.name"
	FieldNamespace     = "metadata.namespace"
	FieldPhase         = "status.phase"
	FieldPodIP         = "status.podIP"
	FieldNodeName      = "spec.nodeName"
	FieldRestartPolicy = "spec.restartPolicy"
)

// PodFields are the fields that pods can be selected by.
func PodFields() []string {
	return []string{FieldName, FieldNamespace, FieldPhase, FieldPodIP, FieldNodeName, FieldRestartPolicy}
}

func podObject(rec *podplanev1.PodRecord, pod *v1.Pod, st *podplanev1.StatusRecord) watchcache.Object {
	var brief struct {
		Phase v1.PodPhase `json:"phase"`
		PodIP string      `json:"podIP"`
	}
	if raw := st.GetStatus(); len(raw) > 0 {
		// A status that can't be read shows as it is; only the selectors miss it.
		_ = json.Unmarshal(raw, &brief)
	}
	if brief.Phase == "" {
		brief.Phase = v1.PodPending
	}
	return watchcache.Object{
		Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Labels: pod.Labels, Size: len(st.GetStatus()) + 512,
		Fields: map[string]string{
			FieldName: pod.Name, FieldNamespace: pod.Namespace, FieldPhase: string(brief.Phase), FieldPodIP: brief.PodIP,
			FieldNodeName: pod.Spec.NodeName, FieldRestartPolicy: string(pod.Spec.RestartPolicy),
		},
		Render: func(o *watchcache.Object) ([]byte, error) { return renderPod(rec, st, o.ResourceVersion()) },
	}
}

// renderPod joins the desired pod and its status, both as stored.
func renderPod(rec *podplanev1.PodRecord, st *podplanev1.StatusRecord, version string) ([]byte, error) {
	o, err := rawjson.Parse(rec.GetPod())
	if err != nil {
		return nil, fmt.Errorf("stored pod %s: %w", rec.GetUid(), err)
	}
	o["kind"], o["apiVersion"] = json.RawMessage(`"Pod"`), json.RawMessage(`"v1"`)
	if len(st.GetStatus()) > 0 {
		o["status"] = st.GetStatus()
	} else {
		o["status"] = json.RawMessage(`{"phase":"Pending"}`)
	}
	answer, err := answerAnnotations(rec, st)
	if err != nil {
		return nil, err
	}
	err = o.Change("metadata", func(m rawjson.Object) error {
		if err := m.Set("resourceVersion", version); err != nil || len(answer) == 0 {
			return err
		}
		return m.Change("annotations", func(a rawjson.Object) error {
			for k, v := range answer {
				if err := a.Set(k, v); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("stored pod %s: %w", rec.GetUid(), err)
	}
	return o.Bytes()
}

func answerAnnotations(rec *podplanev1.PodRecord, st *podplanev1.StatusRecord) (map[string]string, error) {
	a := make(map[string]string, 3)
	if t := rec.GetTrace().GetTraceparent(); t != "" {
		a[admission.AnnotationTrace] = t
	}
	if p := phaseName(st.GetPhase()); p != "" {
		a[admission.AnnotationPhase] = p
	}
	if len(st.GetWaiting()) == 0 {
		return a, nil
	}
	type waiting struct {
		Step     string `json:"step"`
		Resource string `json:"resource,omitempty"`
		Message  string `json:"message,omitempty"`
		Since    string `json:"since,omitempty"`
	}
	list := make([]waiting, 0, len(st.GetWaiting()))
	for _, w := range st.GetWaiting() {
		x := waiting{Step: w.GetStep(), Resource: w.GetResource(), Message: w.GetMessage()}
		if w.GetSince() != nil {
			x.Since = w.GetSince().AsTime().Format(time.RFC3339)
		}
		list = append(list, x)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("status of pod %s: %w", rec.GetUid(), err)
	}
	a[admission.AnnotationWaiting] = string(raw)
	return a, nil
}

func phaseName(p podplanev1.WorkerPhase) string {
	switch p {
	case podplanev1.WorkerPhase_WORKER_PHASE_SYNCING:
		return "Syncing"
	case podplanev1.WorkerPhase_WORKER_PHASE_TERMINATING:
		return "Terminating"
	case podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED:
		return "Terminated"
	}
	return ""
}
