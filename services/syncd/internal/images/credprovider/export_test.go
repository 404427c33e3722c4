package credprovider

// Names decodes a configuration and gives the names of its providers.
func Names(raw []byte) ([]string, error) {
	providers, err := decodeConfig(raw)
	var names []string
	for i := range providers {
		names = append(names, providers[i].Name)
	}
	return names, err
}

// DecodeAnswer decodes an answer of a plugin.
func DecodeAnswer(raw []byte) error {
	_, err := decodeResponse(raw, protocolV1)
	return err
}
