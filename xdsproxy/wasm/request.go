// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// Hints from the control plane to the agent about a plugin.
const (
	hintPullSecret = hintPrefix + "WASM_IMAGE_PULL_SECRET"
	hintPullPolicy = hintPrefix + "WASM_IMAGE_PULL_POLICY"
	hintVersion    = hintPrefix + "WASM_PLUGIN_RESOURCE_VERSION"
)

const (
	defaultFetchTimeout = 5 * time.Second
	maxFetchTimeout     = 10 * time.Minute
	latestTag           = "latest"
)

// request is a plugin's request for a module.
type request struct {
	resource string // name of the extension configuration
	version  string // of the plugin; changes with each modification
	url      *url.URL
	image    name.Reference // for an oci URL
	module   string         // name of the module: the URL, or the image without its tag
	checksum string         // expected checksum in hex, or ""
	always   bool           // a new version of the plugin contacts the origin again
	secret   string         // in docker config JSON format
	noSecret bool           // a secret is named but does not exist
	timeout  time.Duration
}

func newRequest(resource string, p plugin) (request, error) {
	r := request{resource: resource, version: p.hints[hintVersion], timeout: p.timeout}
	switch {
	case r.timeout <= 0:
		r.timeout = defaultFetchTimeout
	case r.timeout > maxFetchTimeout:
		r.timeout = maxFetchTimeout
	}
	if err := r.setChecksum(p.sha256); err != nil {
		return r, err
	}
	var err error
	if r.url, err = url.Parse(p.uri); err != nil {
		return r, errors.New("the module's URL is invalid") // the text may contain a password
	}
	r.module = p.uri
	policy := readPolicy(p.hints[hintPullPolicy])
	switch r.url.Scheme {
	case "http", "https":
		r.always = policy != ifNotPresent
	case "file":
		r.always = policy != ifNotPresent
		return r, nil
	case "oci":
		if err := r.setImage(strings.TrimPrefix(p.uri, "oci://"), policy); err != nil {
			return r, err
		}
		return r, r.setSecret(p.hints)
	default:
		return r, fmt.Errorf("the module's URL has the scheme %q; it must be http, https, oci or file", r.url.Scheme)
	}
	if r.url.Hostname() == "" {
		return r, errors.New("the module's URL names no host")
	}
	return r, nil
}

func (r *request) setChecksum(sum string) error {
	sum = strings.ToLower(strings.TrimPrefix(sum, "sha256:"))
	if sum == "" || sum == "nil" {
		return nil
	}
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return fmt.Errorf("the module's sha256 %q is not 64 hexadecimal digits", sum)
	}
	r.checksum = sum
	return nil
}

func (r *request) setImage(image string, policy pullPolicy) error {
	ref, err := name.ParseReference(image)
	if err != nil {
		return fmt.Errorf("the module's URL names no image: %w", err)
	}
	r.image = ref
	r.module = "oci://" + ref.Context().Name()
	r.always = policy == always || policy == unspecified && ref.Identifier() == latestTag
	if digest, ok := ref.(name.Digest); ok {
		sum, ok := strings.CutPrefix(digest.DigestStr(), "sha256:")
		if !ok {
			return fmt.Errorf("the image's digest %q is not a sha256", digest.DigestStr())
		}
		if r.checksum == "" {
			r.checksum = sum
		}
	}
	return nil
}

func (r *request) setSecret(hints map[string]string) error {
	secret, ok := hints[hintPullSecret]
	switch {
	case !ok:
		return nil
	case secret == "":
		return errors.New("the plugin's pull secret is empty; it must be a docker config JSON")
	}
	r.secret, r.noSecret = secret, secret == "null"
	return nil
}

// pullPolicy determines when the origin is contacted although the module is cached.
type pullPolicy int

const (
	unspecified pullPolicy = iota
	ifNotPresent
	always
)

func readPolicy(s string) pullPolicy {
	switch s {
	case "IfNotPresent":
		return ifNotPresent
	case "Always":
		return always
	default:
		return unspecified
	}
}

// shown returns the URL for messages, without possible secrets.
func (r request) shown() string {
	if r.image != nil {
		return "oci://" + r.image.Name()
	}
	u := url.URL{Scheme: r.url.Scheme, Host: r.url.Host, Path: r.url.Path}
	return u.String()
}

// origin returns the map key of the request's origin; secrets in URLs are hashed.
func (r request) origin() string { return digest(r.url.String() + "\x00" + r.checksum) }

// flight returns the key of the download for the request.
func (r request) flight() string { return digest(r.origin() + r.secret) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
