// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxToken is the maximum size of a file with a token, in bytes.
const maxToken = 16 << 10

// tokenOf returns a token that is written as itself, or as the name of a file.
func tokenOf(value string) (string, error) {
	if value == "" || strings.Count(value, ".") == 2 && !strings.Contains(value, "/") && len(value) > 100 {
		return value, nil
	}
	file, err := os.Open(value)
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.Count(value, ".") == 2:
		return value, nil
	case err != nil:
		return "", fmt.Errorf("--jwt is neither a token nor a file with one: %w", err)
	}
	defer func() { _ = file.Close() }() // read-only: closing cannot lose data
	raw, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the token: %w", err)
	case len(raw) > maxToken:
		return "", fmt.Errorf("the file %s has more than %d bytes: a token is shorter", value, maxToken)
	}
	return strings.TrimSpace(string(raw)), nil
}
