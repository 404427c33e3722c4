package images

// Repository is the repository of an image, with its host spelt out.
func Repository(image string) (string, error) {
	ref, err := parseReference(image)
	if err != nil {
		return "", err
	}
	return ref.repository(), nil
}
