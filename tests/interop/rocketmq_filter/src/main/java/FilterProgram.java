import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.parser.SelectorParserConstants;
import org.apache.rocketmq.filter.parser.TokenMgrError;

/**
 * RocketMQ's side of the filter comparison.
 *
 * Reads lines of an SQL expression and the encoded properties of a message, both in base64 with a
 * space between, and prints a line for each: whether RocketMQ accepts the expression, or accepts only
 * its beginning and ignores the rest, and what it evaluates to (`true`, `false`, `null`, or `thrown`).
 */
public final class FilterProgram {
    private FilterProgram() {
    }

    public static void main(String[] arguments) throws IOException {
        BufferedReader input = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder output = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            int space = line.indexOf(' ');
            String expression = decode(line.substring(0, space));
            Map<String, String> properties =
                MessageDecoder.string2messageProperties(decode(line.substring(space + 1)));
            output.append(answer(expression, properties)).append('\n');
        }
        System.out.print(output);
    }

    private static String decode(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    private static String answer(String expression, Map<String, String> properties) {
        BooleanExpression parsed;
        try {
            parsed = SelectorParser.parse(expression);
        } catch (MQFilterException refused) {
            return "refused";
        }
        // A comment at the very end counts as one although its line has no end.
        boolean whole = new WholeText(expression).isParsedWhole()
            || new WholeText(expression + '\n').isParsedWhole();
        String extent = whole ? "whole" : "beginning";
        try {
            return extent + ' ' + parsed.evaluate(new Message(properties));
        } catch (Exception thrown) {
            return extent + " thrown";
        }
    }

    /** Tells whether the parser came to the end of the text: its grammar does not demand it. */
    private static final class WholeText extends SelectorParser {
        WholeText(String expression) {
            super(expression);
        }

        boolean isParsedWhole() {
            try {
                parse();
                return getNextToken().kind == SelectorParserConstants.EOF;
            } catch (MQFilterException | TokenMgrError refused) {
                return false;
            }
        }
    }

    private static final class Message implements EvaluationContext {
        private final Map<String, String> properties;

        Message(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            throw new UnsupportedOperationException("an expression asks for single properties");
        }
    }
}
