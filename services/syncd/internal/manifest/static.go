package manifest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/services/syncd/internal/admission"
	"github.com/podplane/podplane/services/syncd/internal/decode"
)

// Annotations of static pods, as in Kubernetes.
const (
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationHash   = "kubernetes.io/config.hash"

	sourceFile = "file"
)

// MaxFileBytes is the largest manifest that is read.
const MaxFileBytes = 10 << 20

// Static makes the pod of a manifest. Its name ends in the node's, its UID is a hash of what the manifest means, of the node and of the
// path: the same manifest is the same pod for every process, another manifest is another pod. Errors say the line.
func Static(path string, data []byte, node admission.Node) (*v1.Pod, error) {
	in := decode.Input{Data: data, Limit: MaxFileBytes, RequireKind: true}
	pod, err := decode.Pod(in)
	if err != nil {
		return nil, located(path, data, err)
	}
	canonical, err := decode.Canonical(in)
	if err != nil {
		return nil, located(path, data, err)
	}
	if pod.Name == "" && pod.GenerateName != "" {
		return nil, fmt.Errorf("%s: %w", path, fault.New(fault.Invalid, "metadata.generateName: a manifest file must give its pod a name"))
	}
	if pod.Name != "" {
		pod.Name += "-" + strings.ToLower(node.Name)
	}
	pod.ResourceVersion = ""
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	if err := node.Pod(pod, ""); err != nil {
		return nil, located(path, data, err)
	}
	uid := hash(canonical, node.Name, path)
	pod.UID = types.UID(uid)
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string, 2)
	}
	pod.Annotations[AnnotationSource], pod.Annotations[AnnotationHash] = sourceFile, uid
	return pod, nil
}

func hash(canonical []byte, node, path string) string {
	h := fnv.New128a()
	// Writing to a hash never fails.
	_, _ = h.Write(canonical)
	_, _ = h.Write([]byte("host:" + node + "file:" + path))
	return hex.EncodeToString(h.Sum(nil))
}

// located puts the file, and for the first field that is wrong its line, before a message.
func located(path string, data []byte, err error) error {
	where := path
	if f := fault.Fields(err); len(f) > 0 {
		if l := decode.Line(data, f[0].Path); l > 0 {
			where = fmt.Sprintf("%s:%d", path, l)
		}
	} else if at, ok := errors.AsType[*decode.SyntaxError](err); ok {
		where = fmt.Sprintf("%s:%d", path, at.Line())
	}
	return fmt.Errorf("%s: %w", where, err)
}
