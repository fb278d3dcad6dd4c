// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	// linkLocal is the base URL of the metadata service in all three clouds. It contains an
	// address, so that no name must be resolved.
	linkLocal = "http://169.254.169.254"
	// maxValue is the maximum size of a response with one value, maxDocument of one with several
	// values, and maxHeader of the header of either.
	maxValue    = 1 << 10
	maxDocument = 256 << 10
	maxHeader   = 16 << 10
)

// statusError reports a response status other than 200.
type statusError struct {
	path string
	code int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s returned %d %s", e.path, e.code, http.StatusText(e.code))
}

// refused reports whether an error is a response with one of the status codes, rather than a
// transport error.
func refused(err error, codes ...int) bool {
	var status *statusError
	if !errors.As(err, &status) {
		return false
	}
	for _, code := range codes {
		if status.code == code {
			return true
		}
	}
	return len(codes) == 0
}

// service is a client of a metadata service.
type service struct {
	base string
	// header is sent with each request; each response must contain wanted.
	header, wanted http.Header
	client         *http.Client
}

func newService(base, fallback string) service {
	if base == "" {
		base = fallback
	}
	return service{base: strings.TrimSuffix(base, "/"), header: http.Header{}, client: &http.Client{
		Transport: &http.Transport{
			// Proxy remains nil: a proxy would return the metadata of another machine.
			DialContext:            (&net.Dialer{}).DialContext,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
		},
		// A metadata service does not redirect.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// do sends a request and returns the body of the response.
func (s service) do(ctx context.Context, method, path string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header = s.header
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{path: path, code: resp.StatusCode}
	}
	for name := range s.wanted {
		if got, want := resp.Header.Get(name), s.wanted.Get(name); got != want {
			return nil, fmt.Errorf("%s responded without the header %s: %s, so it is another server", path, name, want)
		}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response of %s: %w", path, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("the response of %s has more than %d bytes", path, limit)
	}
	return body, nil
}

// value requests a path whose response is one value.
func (s service) value(ctx context.Context, method, path string) (string, error) {
	body, err := s.do(ctx, method, path, maxValue)
	if err != nil {
		return "", err
	}
	text, ok := printable(string(body))
	if !ok {
		return "", fmt.Errorf("the response of %s is not a line of text", path)
	}
	return text, nil
}

// answer is the result of one request.
type answer struct {
	value string
	err   error
}

// values requests several paths concurrently.
func (s service) values(ctx context.Context, paths ...string) []answer {
	answers := make([]answer, len(paths))
	var wg sync.WaitGroup
	for i, path := range paths {
		wg.Go(func() { answers[i].value, answers[i].err = s.value(ctx, http.MethodGet, path) })
	}
	wg.Wait()
	return answers
}

// joined returns the combined error of several answers, without those that ignore accepts. Equal
// causes, such as the deadline, are reported once.
func joined(answers []answer, ignore func(error) bool) error {
	var first error
	more := 0
	for _, a := range answers {
		switch {
		case a.err == nil, ignore != nil && ignore(a.err):
		case first == nil:
			first = a.err
		default:
			more++
		}
	}
	if more > 0 {
		return fmt.Errorf("%w (and %d more requests)", first, more)
	}
	return first
}

// printable returns a value that node metadata may contain. It returns false unless the text is one
// line of limited length.
func printable(text string) (string, bool) {
	text = strings.TrimSpace(text)
	ok := len(text) <= maxValue && utf8.ValidString(text) && strings.IndexFunc(text, unicode.IsControl) < 0
	return text, ok
}

// validLocality reports whether a text can be a region or a zone. It must not contain slashes,
// which separate the parts of a locality.
func validLocality(text string) bool {
	for i, r := range text {
		alphanumeric := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alphanumeric && (i == 0 || r != '-' && r != '_' && r != '.') {
			return false
		}
	}
	return text != ""
}

// metadata returns PLATFORM_METADATA for pairs of keys and values, without empty values.
func metadata(pairs ...string) map[string]string {
	var m map[string]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if key, value := pairs[i], pairs[i+1]; value != "" {
			if m == nil {
				m = map[string]string{}
			}
			m[key] = value
		}
	}
	return m
}
