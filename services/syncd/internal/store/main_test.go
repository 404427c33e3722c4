package store_test

import (
	"testing"

	"github.com/podplane/podplane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
