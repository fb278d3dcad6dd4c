// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	registryv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// pluginFile is the file name of the module in an image that contains files.
	pluginFile = "plugin.wasm"
	// Media types of layers that consist of a module.
	layerWasm    = "application/vnd.module.wasm.content.layer.v1+wasm"
	layerWasmOCI = "application/wasm"
)

// image is an image in a registry, with a client to read more from it.
type image struct {
	registryv1.Image
	repository name.Repository
	options    []remote.Option
	digest     string // of the manifest, in hex
	index      string // digest of the index that contains it, in hex; may be empty
}

// fetchImage downloads the module of an image. Its checksum is the digest of the image's manifest.
func (c *Cache) fetchImage(ctx context.Context, r request) (moduleKey, error) {
	img, err := c.openImage(ctx, r)
	if err != nil {
		return moduleKey{}, &fetchError{manifestFailure, err}
	}
	if r.checksum != "" && r.checksum != img.digest && r.checksum != img.index {
		return moduleKey{}, &fetchError{checksumMismatch, fmt.Errorf("the image's digest is %s, want %s", img.digest, r.checksum)}
	}
	k := moduleKey{Module: digest(r.module), Checksum: img.digest}
	if c.store.known(k) {
		return k, nil // the tag still refers to the same image
	}
	d, err := c.pull(img)
	if err != nil {
		return moduleKey{}, &fetchError{fetchFailure, err}
	}
	return k, c.add(d, k)
}

// openImage reads an image's manifest. It falls back to plaintext for a registry that supports only
// HTTP.
func (c *Cache) openImage(ctx context.Context, r request) (*image, error) {
	auth, err := c.credentials(r)
	if err != nil {
		return nil, err
	}
	img := &image{repository: r.image.Context(), options: []remote.Option{
		remote.WithContext(ctx),
		remote.WithAuth(auth),
		remote.WithUserAgent(userAgent),
		remote.WithTransport(registryTransport{network: c.net, credentials: auth != authn.Anonymous, maxBlob: c.maxModule}),
		remote.WithRetryBackoff(remote.Backoff{
			Duration: c.pause, Factor: backoffGrowth, Jitter: backoffJitter, Steps: c.cfg.HTTPMaxAttempts,
		}),
	}}
	ref := r.image
	desc, err := remote.Get(ref, img.options...)
	if err != nil && isPlainHTTP(err) {
		if auth != authn.Anonymous && !c.net.isInsecure(ref.Context().RegistryStr()) {
			return nil, plaintextError(ref.Context().RegistryStr())
		}
		if ref, err = name.ParseReference(strings.TrimPrefix(r.url.String(), "oci://"), name.Insecure); err != nil {
			return nil, err
		}
		img.repository = ref.Context()
		desc, err = remote.Get(ref, img.options...)
	}
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", withoutURL(err))
	}
	if desc.MediaType.IsIndex() {
		img.index = desc.Digest.Hex
		chosen, err := choose(desc)
		if err != nil {
			return nil, err
		}
		if desc, err = remote.Get(img.repository.Digest(chosen.String()), img.options...); err != nil {
			return nil, fmt.Errorf("read the manifest %s: %w", chosen, withoutURL(err))
		}
	}
	if img.Image, err = desc.Image(); err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	img.digest = desc.Digest.Hex
	return img, nil
}

// isPlainHTTP reports whether a registry responded with HTTP to a TLS handshake.
func isPlainHTTP(err error) bool {
	return errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), http.ErrSchemeMismatch.Error())
}

// choose selects the Wasm image in an index, else the one for this machine's platform, else the
// only one.
func choose(desc *remote.Descriptor) (registryv1.Hash, error) {
	index, err := desc.ImageIndex()
	if err != nil {
		return registryv1.Hash{}, fmt.Errorf("read the index: %w", err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		return registryv1.Hash{}, fmt.Errorf("read the index: %w", err)
	}
	best, rank := registryv1.Hash{}, 0
	for _, d := range m.Manifests {
		if !d.MediaType.IsImage() {
			continue
		}
		if n := suits(d.Platform, len(m.Manifests)); n > rank {
			best, rank = d.Digest, n
		}
	}
	if rank == 0 {
		return best, fmt.Errorf("none of the %d images of the index is for Wasm or for linux/%s", len(m.Manifests), runtime.GOARCH)
	}
	return best, nil
}

func suits(p *registryv1.Platform, images int) int {
	switch {
	case p != nil && (p.Architecture == "wasm" || slices.Contains([]string{"wasi", "wasip1", "wasm"}, p.OS)):
		return 4
	case p != nil && p.OS == "linux" && p.Architecture == runtime.GOARCH:
		return 3
	case p != nil && p.OS == "linux" && p.Architecture == "amd64":
		return 2
	case images == 1:
		return 1
	}
	return 0
}

// pull writes the module of an image to the cache's directory.
func (c *Cache) pull(img *image) (*download, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	layers := manifest.Layers
	if len(layers) == 0 {
		return nil, errors.New("the image has no layers")
	}
	last := layers[len(layers)-1]
	switch last.MediaType {
	case types.DockerLayer, types.OCILayer, types.OCIUncompressedLayer, types.DockerUncompressedLayer:
		return c.pullLayer(img, last, true)
	}
	var modules []registryv1.Descriptor
	for _, l := range layers {
		if l.MediaType == layerWasm || l.MediaType == layerWasmOCI {
			modules = append(modules, l)
		}
	}
	if len(modules) != 1 {
		return nil, fmt.Errorf("the image has %d layers of Wasm, and its last is %q; it must have one, or end with a layer that contains %s",
			len(modules), last.MediaType, pluginFile)
	}
	return c.pullLayer(img, modules[0], false)
}

// pullLayer reads a layer, which is an archive that contains the module, or the module itself.
func (c *Cache) pullLayer(img *image, l registryv1.Descriptor, archive bool) (*download, error) {
	if l.Size > c.maxModule {
		return nil, fmt.Errorf("the layer has %d bytes, more than %d", l.Size, c.maxModule)
	}
	layer, err := remote.Layer(img.repository.Digest(l.Digest.String()), img.options...)
	if err != nil {
		return nil, fmt.Errorf("read the layer: %w", withoutURL(err))
	}
	body, err := layer.Compressed() // verifies the digest at the end
	if err != nil {
		return nil, fmt.Errorf("read the layer: %w", withoutURL(err))
	}
	defer func() { _ = body.Close() }() // read-only: closing cannot lose data
	r := io.Reader(body)
	if archive {
		if r, err = c.pluginOf(body); err != nil {
			return nil, err
		}
	}
	d, err := c.receive(r)
	if err != nil {
		return nil, fmt.Errorf("read the layer: %w", err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil { // read to the end, to verify the digest
		d.discard()
		return nil, fmt.Errorf("read the layer: %w", err)
	}
	return d, nil
}

// pluginOf finds the module in a layer that contains files.
func (c *Cache) pluginOf(layer io.Reader) (io.Reader, error) {
	b := bufio.NewReader(layer)
	head, _ := b.Peek(len(gzipMagic)) // data that is too short is not an archive either
	files := io.Reader(b)
	if bytes.HasPrefix(head, []byte(gzipMagic)) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("read the layer: %w", err)
		}
		files = z
	}
	r, err := fileOf(limit(files, c.maxModule), func(h *tar.Header) bool { return path.Base(h.Name) == pluginFile })
	if err != nil {
		return nil, fmt.Errorf("find %s in the layer: %w", pluginFile, err)
	}
	return r, nil
}
