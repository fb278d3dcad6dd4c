// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/credentials"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

const maxDockerConfig = 1 << 20

// credentials returns the credentials for an image's registry: those in the plugin's pull secret if
// it has one, otherwise those of this machine.
func (c *Cache) credentials(r request) (authn.Authenticator, error) {
	if r.secret != "" {
		file, err := config.LoadFromReader(strings.NewReader(r.secret))
		if err != nil {
			return nil, errors.New("the plugin's pull secret is not a docker config JSON") // the error may quote the secret
		}
		// Use only the file: a secret must not name a program to run on this machine.
		return authenticator(r.image, credentials.NewFileStore(file).Get)
	}
	if c.cfg.DockerConfigDir == "" {
		return authn.Anonymous, nil
	}
	file, err := readDockerConfig(filepath.Join(c.cfg.DockerConfigDir, config.ConfigFileName))
	if errors.Is(err, fs.ErrNotExist) {
		return authn.Anonymous, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the registries' credentials: %w", err)
	}
	return authenticator(r.image, file.GetAuthConfig)
}

func readDockerConfig(path string) (*configfile.ConfigFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	file, err := config.LoadFromReader(io.LimitReader(f, maxDockerConfig))
	if err != nil {
		return nil, fmt.Errorf("%s is not a docker config JSON: %w", path, err)
	}
	return file, nil
}

// authenticator looks up the credentials of an image's repository and then those of its registry.
func authenticator(image name.Reference, get func(string) (types.AuthConfig, error)) (authn.Authenticator, error) {
	registry := image.Context().RegistryStr()
	if registry == name.DefaultRegistry {
		registry = authn.DefaultAuthKey
	}
	for _, key := range []string{image.Context().Name(), registry} {
		found, err := get(key)
		if err != nil {
			return nil, fmt.Errorf("look up the credentials for %s: %w", key, err)
		}
		found.ServerAddress = ""
		if found != (types.AuthConfig{}) {
			return authn.FromConfig(authn.AuthConfig{
				Username: found.Username, Password: found.Password, Auth: found.Auth,
				IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
			}), nil
		}
	}
	return authn.Anonymous, nil
}
