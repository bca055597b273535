//go:build tools

// Package tools names the programs that build.sh compiles, so that go.mod and go.sum hold what they need.
package tools

import _ "github.com/fsouza/fake-gcs-server"
