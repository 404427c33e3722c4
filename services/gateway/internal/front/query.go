package front

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/proto"
)

// queryParser fills a request from the query. What it can't read it names as the client wrote it.
type queryParser struct{ runtime.DefaultQueryParser }

// Parse implements runtime.QueryParameterParser.
func (p *queryParser) Parse(target proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := p.DefaultQueryParser.Parse(target, url.Values{name: values[name]}, filter); err != nil {
			return fmt.Errorf("query parameter %s=%q: %w", name, values.Get(name), whatIsAllowed(err))
		}
	}
	return nil
}

func whatIsAllowed(err error) error {
	var number *strconv.NumError
	switch {
	case !errors.As(err, &number):
		return err
	case number.Func == "ParseBool":
		return errors.New("must be true or false")
	case errors.Is(number.Err, strconv.ErrRange):
		return errors.New("must be a smaller number")
	default:
		return errors.New("must be a whole number")
	}
}
