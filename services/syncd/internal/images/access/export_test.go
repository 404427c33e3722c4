package access

import "time"

// Abandon ends the pull as the end of its process would: its note stays, and is locked no more.
func (p *Pull) Abandon() {
	g := p.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.pulls[p.image.Name].file.Close()
	delete(g.pulls, p.image.Name)
}

// SetNow sets the clock.
func (g *Guard) SetNow(now func() time.Time) { g.now = now }

// DecodeRecord decodes a record, for fuzzing.
func DecodeRecord(raw []byte) (*Credentials, error) {
	var rec record
	if err := decode(raw, kindPulled, &rec, &rec.TypeMeta); err != nil {
		return nil, err
	}
	c := rec.CredentialMapping["r"]
	return &c, nil
}
