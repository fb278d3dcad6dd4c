// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package node

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Names of the images that the node has.
const (
	imageTag   = "node-test"
	imageHub   = "outrigger" // proxy and control
	appImage   = "example/app:" + imageTag
	pauseImage = "docker.io/example/pause:" + imageTag
)

// importImages makes the images of the tests and imports them and those of Outrigger.
func (n *Node) importImages(ctx context.Context) error {
	layer, err := layerOf(map[string]string{"app": n.files.program("app"), "bookinfo": n.files.program("bookinfo")})
	if err != nil {
		return fmt.Errorf("make the images of the tests: %w", err)
	}
	for image, command := range map[string][]string{appImage: {"/app"}, pauseImage: {"/app", "pause"}} {
		if err := importImage(ctx, image, layer, command); err != nil {
			return err
		}
	}
	for _, archive := range n.files.Images {
		if err := importArchive(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// importImage makes an image of one layer and imports it.
func importImage(ctx context.Context, image string, layer v1.Layer, command []string) error {
	archive := filepath.Join(os.TempDir(), strings.NewReplacer("/", "-", ":", "-").Replace(image)+".tar")
	if err := writeImage(archive, image, layer, command); err != nil {
		return fmt.Errorf("make the image %s: %w", image, err)
	}
	return importArchive(ctx, archive)
}

func importArchive(ctx context.Context, archive string) error {
	out, err := exec.CommandContext(ctx, "ctr", "--address="+containerdSocket, "--namespace=k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import %s: %w: %s", archive, err, out)
	}
	return nil
}

// layerOf returns a layer with files, by their paths in the image.
func layerOf(files map[string]string) (v1.Layer, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	for name, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := out.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := out.Write(content); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil })
}

func writeImage(archive, image string, layer v1.Layer, command []string) error {
	tag, err := name.NewTag(image)
	if err != nil {
		return err
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := made.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Entrypoint = "linux", runtime.GOARCH, command
	if made, err = mutate.ConfigFile(made, config); err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, made)
}
