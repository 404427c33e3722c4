package images

import v1 "k8s.io/api/core/v1"

// Patterns are the registries that a pull secret has credentials for, as images name them.
func Patterns(s *v1.Secret) ([]string, error) {
	auths, err := parseSecret(s)
	var ring keyring
	ring.add(auths, nil)
	var list []string
	for _, c := range ring {
		list = append(list, c.pattern)
	}
	return list, err
}

// Normalize brings a registry's key into the form of image names.
func Normalize(key string) string { return normalizeRegistry(key) }

// Repository is the repository of an image, with its host spelt out.
func Repository(image string) (string, error) {
	ref, err := parseReference(image)
	if err != nil {
		return "", err
	}
	return ref.repository(), nil
}
