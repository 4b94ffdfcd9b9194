package snshook

// Vouch checks a certificate file as a fetched one is checked.
func (v *Verifier) Vouch(file []byte) error {
	_, err := v.certificates.vouch(file)
	return err
}

// Cached counts the certificates that are kept.
func (v *Verifier) Cached() int {
	v.certificates.mu.Lock()
	defer v.certificates.mu.Unlock()
	return len(v.certificates.known)
}

// TextToSign is what a delivery says that SNS signed.
func TextToSign(body []byte) (string, error) {
	e, err := parse(body)
	return e.textToSign(), err
}
