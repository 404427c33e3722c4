package access

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/cri"
)

// The records are the kubelet's own (KEP-2535), so that a node that changes from one to the other keeps them.
const (
	apiVersion  = "kubelet.config.k8s.io/v1beta1"
	kindIntent  = "ImagePullIntent"
	kindPulled  = "ImagePulledRecord"
	maxSecrets  = 100
	maxFileSize = 4 << 20
)

// knownVersions can be read.
var knownVersions = []string{apiVersion, "kubelet.config.k8s.io/v1alpha1"}

// intent is written before a pull: whatever becomes of the pull, the image is not a preloaded one.
type intent struct {
	metav1.TypeMeta `json:",inline"`
	Image           string `json:"image"`
}

// record says who may use an image that was pulled.
type record struct {
	metav1.TypeMeta `json:",inline"`
	LastUpdatedTime metav1.Time `json:"lastUpdatedTime"`
	// ImageRef is the runtime's ID of the image.
	ImageRef string `json:"imageRef"`
	// CredentialMapping is by repository: the same image in another one needs that one's credentials.
	CredentialMapping map[string]Credentials `json:"credentialMapping,omitempty"`
}

// Credentials are those that an image was pulled with.
type Credentials struct {
	// NodePodsAccessible: with the node's own credentials, or with none.
	NodePodsAccessible bool     `json:"nodePodsAccessible,omitempty"`
	KubernetesSecrets  []Secret `json:"kubernetesSecrets,omitempty"`
	// ServiceAccounts are kept as they were found; this node pulls with none.
	ServiceAccounts []map[string]string `json:"kubernetesServiceAccounts,omitempty"`
}

// Secret is where credentials were from.
type Secret struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// CredentialHash tells the credentials apart that the Secret had.
	CredentialHash string `json:"credentialHash"`
}

func (s Secret) same(o Secret) bool {
	return s.UID == o.UID && s.Namespace == o.Namespace && s.Name == o.Name
}

// good says whether one of the pod's credentials is known to open the image: the same credentials, or the same Secret whatever it holds now. fresh
// is the credentials to add to the record, so that they are known in future; nil: none.
func (c Credentials) good(offered []Secret) (ok bool, fresh *Secret) {
	if c.NodePodsAccessible {
		return true, nil
	}
	for _, o := range offered {
		for _, k := range c.KubernetesSecrets {
			hash := k.CredentialHash != "" && k.CredentialHash == o.CredentialHash
			if !hash && !k.same(o) {
				continue
			}
			if hash && k.same(o) || slices.Contains(c.KubernetesSecrets, o) || len(c.KubernetesSecrets) >= maxSecrets {
				return true, nil
			}
			return true, &o
		}
	}
	return false, nil
}

// preloaded says whether the image also has a name in this repository that no pull here gave to it: the same content was pulled under another name.
func (r *record) preloaded(repository string, image *cri.Image) bool {
	if _, pulled := r.CredentialMapping[repository]; pulled || len(r.CredentialMapping) == 0 {
		return false
	}
	return slices.ContainsFunc(slices.Concat(image.RepoTags, image.RepoDigests), func(name string) bool { return shortRepository(name) == repository })
}

// merge adds credentials that a pull succeeded with; none: a pull of which nothing is known. It says whether the record changed.
func (r *record) merge(repository string, add Credentials, now time.Time) bool {
	have, known := r.CredentialMapping[repository]
	merged := have
	switch {
	case have.NodePodsAccessible:
		return false
	case add.NodePodsAccessible:
		merged = Credentials{NodePodsAccessible: true}
	default:
		changed := !known
		merged.KubernetesSecrets, changed = addSecrets(have.KubernetesSecrets, add.KubernetesSecrets, changed)
		if !changed {
			return false
		}
	}
	if r.CredentialMapping == nil {
		r.CredentialMapping = make(map[string]Credentials)
	}
	r.CredentialMapping[repository] = merged
	r.LastUpdatedTime = metav1.NewTime(now)
	return true
}

// addSecrets adds Secrets, or what they hold now. Of more than maxSecrets the oldest go: who had them pulls once more.
func addSecrets(have, add []Secret, changed bool) ([]Secret, bool) {
	list := slices.Clone(have)
	for _, s := range add {
		switch i := slices.IndexFunc(list, s.same); {
		case i >= 0 && list[i] == s:
		case i >= 0:
			list[i], changed = s, true
		default:
			list, changed = append(list, s), true
		}
	}
	return list[max(0, len(list)-maxSecrets):], changed
}
